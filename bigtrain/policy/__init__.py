"""Policies: one step from (episode state, observation, previous action) to a decision."""

from bigtrain.policy.base import NO_ACTION, Decision, Policy
from bigtrain.policy.block import BLOCK, compile_block, step_block
from bigtrain.policy.network import NetworkPolicy, PolicyConfig, ValueNetwork
from bigtrain.policy.posterior import Posterior
from bigtrain.policy.tabular import BayesPolicy, MemorylessPolicy, PrivilegedPolicy
from bigtrain.policy.tracker import BeliefState, BeliefTracker, FilterTracker

__all__ = [
    "BLOCK",
    "NO_ACTION",
    "BayesPolicy",
    "BeliefState",
    "BeliefTracker",
    "Decision",
    "FilterTracker",
    "MemorylessPolicy",
    "NetworkPolicy",
    "Policy",
    "PolicyConfig",
    "Posterior",
    "PrivilegedPolicy",
    "ValueNetwork",
    "compile_block",
    "step_block",
]
