"""Demonstrations: expert episodes in memory and on disk; and replay of what was collected."""

from bigtrain.data import replay
from bigtrain.data.arrays import check_below, is_state_indices
from bigtrain.data.demonstrations import Demonstrations
from bigtrain.data.replay import Replay
from bigtrain.data.trajectory import Trajectory

__all__ = [
    "Demonstrations",
    "Replay",
    "Trajectory",
    "check_below",
    "is_state_indices",
    "replay",
]
