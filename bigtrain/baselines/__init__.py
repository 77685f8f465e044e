"""What people try first, to compare with: cloning, and inverse RL that leaves something out."""

from bigtrain.baselines.cloned import ClonedPolicy, CloneNetwork, CloneState
from bigtrain.baselines.cloning import CloneConfig, clone_network
from bigtrain.finite import average_contexts, clone, solve_averaged, solve_without_prior

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
