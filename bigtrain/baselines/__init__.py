"""What one would do without BIG: copy the experts, or infer their reward and leave something out.

`clone` and `clone_network` copy what experts did; `solve_without_prior` and `solve_averaged` infer
what they wanted. None of them knows that an agent may have to find out what an expert saw.
"""

from bigtrain.baselines.cloned import ClonedPolicy, CloneNetwork, CloneState
from bigtrain.baselines.cloning import CloneConfig, clone, clone_network
from bigtrain.finite.irl_baselines import average_contexts, solve_averaged, solve_without_prior

__all__ = [
    "CloneConfig",
    "CloneNetwork",
    "CloneState",
    "ClonedPolicy",
    "average_contexts",
    "clone",
    "clone_network",
    "solve_averaged",
    "solve_without_prior",
]
