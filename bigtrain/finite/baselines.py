"""Baselines of finite problems, exactly: cloning by counting, and inverse reinforcement
learning that leaves something out, the exploration prior or the contexts.

    clone            π(a | s) = n(s, a) / n(s)                   n counts all contexts alike
    without prior    r = ν·ω̄ + bias everywhere                  eq. (4) without its first case
    averaged         p(s' | s, a) = Σ_θ p(θ) p(s' | s, a, θ)     for the inference (appendix C)

Where there is an imitation gap (section 3.1) each fails in its way: the clone never explores, since
no expert did; the reward without prior speaks against exploring for the same reason; the averaged
one takes for a preference what the dynamics of single contexts explain.
"""

from collections.abc import Sequence

import numpy as np

from bigtrain.data import Demonstrations
from bigtrain.finite import transitions
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact.bayes import BayesSolution
from bigtrain.finite.policies import MemorylessPolicy
from bigtrain.finite.solving import SolveConfig, solve
from bigtrain.result import FitResult
from bigtrain.runs import Callback


def solve_without_prior(
    cmdp: TabularCMDP,
    demonstrations: Demonstrations,
    *,
    reward_range: tuple[float, float],
    config: SolveConfig = SolveConfig(),
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
) -> FitResult[TabularCMDP, BayesSolution]:
    """Maximum-entropy IRL, the paper's "No-Prior": nobody says what exploring may cost.

    Experts never had to explore, so the inferred reward speaks against it.
    """
    return solve(
        cmdp,
        demonstrations,
        reward_range=reward_range,
        exploration=None,
        config=config,
        seed=seed,
        callbacks=callbacks,
    )


def solve_averaged(
    cmdp: TabularCMDP,
    demonstrations: Demonstrations,
    *,
    reward_range: tuple[float, float],
    config: SolveConfig = SolveConfig(),
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
) -> FitResult[TabularCMDP, BayesSolution]:
    """The same with contexts averaged out, the naive IRL of section 5.2.

    To the inference all experts acted in one MDP, that of `average_contexts`; the policy is the
    Bayes-optimal one of the problem as it is.
    """
    return solve(
        cmdp,
        demonstrations,
        reward_range=reward_range,
        exploration=None,
        config=config,
        seed=seed,
        callbacks=callbacks,
        inference_cmdp=average_contexts(cmdp),
    )


def average_contexts(cmdp: TabularCMDP) -> TabularCMDP:
    """The one MDP that has the prior's mean dynamics: what IRL sees that infers no contexts."""
    successors, probabilities = cmdp.transitions
    mean = np.tensordot(cmdp.context_prior, probabilities, 1)[None]
    return TabularCMDP(
        transitions.Transitions(successors, mean),
        [1.0],
        cmdp.initial,
        gamma=cmdp.gamma,
        features=cmdp.feature_table,
        observations=cmdp.observer,
        state_names=cmdp.state_names,
        action_names=cmdp.action_names,
        context_names=["averaged"],
    )


def clone(cmdp: TabularCMDP, demonstrations: Demonstrations) -> MemorylessPolicy:
    """Behaviour cloning: in each state, the experts' actions as often as they took them.

    This is what any cloning without memory converges to. Where no expert was, every action is as
    good as another.
    """
    expert = demonstrations.trajectories(cmdp)
    steps = np.asarray(expert.mask)[:, 1:]
    counts = np.zeros((cmdp.num_states, cmdp.num_actions))
    states, actions = np.asarray(expert.states), np.asarray(expert.actions)
    # `add.at`, since a pair occurs many times.
    np.add.at(counts, (states[:, :-1][steps], actions[:, :-1][steps]), 1)
    counts[counts.sum(-1) == 0] = 1
    return MemorylessPolicy(cmdp, counts / counts.sum(-1, keepdims=True))
