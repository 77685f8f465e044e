"""What learners share: networks, linear heads, devices."""

from bigtrain.learning import heads
from bigtrain.learning.driver import (
    Collection,
    Judge,
    MemberMetrics,
    Stage,
    advance,
    drive,
    of_member,
    pick,
)
from bigtrain.learning.networks import Encoder, NetworkConfig, Trunk, linear

__all__ = [
    "Collection",
    "Encoder",
    "Judge",
    "MemberMetrics",
    "NetworkConfig",
    "Stage",
    "Trunk",
    "advance",
    "drive",
    "heads",
    "linear",
    "of_member",
    "pick",
]
