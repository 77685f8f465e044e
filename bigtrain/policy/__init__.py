"""Policies: one step from (episode state, observation, previous action) to a decision."""

from bigtrain.policy.actor import PolicyActor, play
from bigtrain.policy.base import Decision, Policy
from bigtrain.policy.block import BLOCK, compile_block, step_block
from bigtrain.policy.network import Core, NetworkPolicy, PolicyConfig, ValueNetwork

__all__ = [
    "BLOCK",
    "Core",
    "Decision",
    "NetworkPolicy",
    "Policy",
    "PolicyActor",
    "PolicyConfig",
    "ValueNetwork",
    "compile_block",
    "play",
    "step_block",
]
