"""Phase 3 as a whole: from a predictive reward and a simulator to a Bayes policy.

Members (seeds, and settings that differ only in numbers) learn side by side in one compiled
program. In between they are evaluated, and of each the best policy so far is kept: by its certified
regret where the problem is finite, and otherwise by its return.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import threadpoolctl
from jaxtyping import Array, Float, Int

from bigtrain.arrays import ArrayLike
from bigtrain.bayes_rl import learner as learning
from bigtrain.bayes_rl.config import BayesRLConfig
from bigtrain.bayes_rl.learner import Learner, LearnerState, Metrics, Networks
from bigtrain.bayes_rl.rewards import Numbers, prepare
from bigtrain.belief import ExactFilter, Filter, Posterior
from bigtrain.errors import ConfigError
from bigtrain.evaluate import Regret, never_exploring_value, policy_value
from bigtrain.exploration import PredictiveReward
from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.finite.exact.bayes import BayesConfig, BayesSolution, solve_bayes
from bigtrain.finite.exact.controller import SAME_MEMORY
from bigtrain.finite.tracker import FilterTracker
from bigtrain.policy import NetworkPolicy
from bigtrain.problem import CMDP
from bigtrain.rollout import rollout
from bigtrain.runs import Callback, Event, Run, metric_values

_VALUE_TOLERANCE = 1e-7
"""What weighs less is not followed when a policy is valued, as a share of all there is."""

COARSE = 1e-2
"""Beliefs that a network tracks drift, and some policies meet endlessly many: until a policy looks
good, and where there are too many, beliefs that differ by less than this are taken as one."""


@final
@dataclass(frozen=True, eq=False)
class LearnedPolicy:
    """A policy, and what is known of it: its regret and certificate where the problem is finite.

    `discounted_return` was measured in simulation, by the predictive reward.
    """

    policy: NetworkPolicy
    regret: Regret | None
    certificate: BayesSolution | None
    discounted_return: float | None
    history: tuple[Event, ...]


Measure = Callable[[NetworkPolicy], Mapping[str, float]]
"""What else is to be known of a policy whenever it is judged, by name."""


class Best(NamedTuple):
    """The best networks of one member so far, by `score`; and evaluations since they came."""

    networks: Networks
    score: Float[Array, ""]
    num_since: Float[Array, ""]


def learn_policies(
    cmdp: CMDP,
    rewards: Sequence[PredictiveReward | ArrayLike],
    *,
    config: BayesRLConfig = BayesRLConfig(),
    seeds: Sequence[int],
    learning_rates: Sequence[float] | None = None,
    baselines: Sequence[float] | None = None,
    filter: Filter | None = None,
    certificate: BayesConfig = BayesConfig(),
    exploration_states: Sequence[int | str] | None = None,
    measure: Measure | None = None,
    callbacks: Sequence[Callback] = (),
    run: Run | None = None,
) -> list[LearnedPolicy]:
    """Learns one policy for each reward and seed, all in one program.

    `baselines` say what reward a step is likely in a simulator that is not finite; `filter` takes
    the place of the exact one. What `measure` finds of each member's policy of the moment goes
    into the events. A `run` keeps metrics and checkpoints.
    """
    if len(rewards) != len(seeds) or not seeds:
        raise ConfigError(
            "There must be as many `rewards` as `seeds`, at least one, "
            f"got {len(rewards)} and {len(seeds)}."
        )
    rates = [config.learning_rate] * len(seeds) if learning_rates is None else learning_rates
    model, numbers = prepare(cmdp, rewards, rates, baselines)
    learner = make_learner(cmdp, model, config, filter)
    judge = (
        _Certifier(cmdp, rewards, certificate, exploration_states)
        if isinstance(cmdp, TabularCMDP)
        else _Player()
    )
    run = run or Run(None, {}, fingerprint="")
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        keys = jnp.stack([jax.random.key(seed) for seed in seeds])
        states = learning.init_members(learner, keys)
        best = Best(states.average, jnp.full(len(seeds), jnp.inf), jnp.zeros(len(seeds)))
        _, (states, best) = run.resume((states, best), phase="policy") or (0, (states, best))
        best, history = _drive(learner, numbers, states, best, judge, measure, run, callbacks)
        return [
            judge.conclude(make_policy(learner, numbers, best.networks, place), place, history)
            for place in range(len(seeds))
        ]


def learn_policy(
    cmdp: CMDP,
    reward: PredictiveReward | ArrayLike,
    *,
    config: BayesRLConfig = BayesRLConfig(),
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
) -> LearnedPolicy:
    """Learns the Bayes policy for one reward; see `learn_policies` for many, and for more."""
    return learn_policies(cmdp, [reward], config=config, seeds=[seed], callbacks=callbacks)[0]


def make_learner(
    cmdp: CMDP, model: Any, config: BayesRLConfig, filter: Filter | None = None
) -> Learner:
    """What is compiled: the problem, the kind of belief and the settings, checked."""
    finite = isinstance(cmdp, TabularCMDP)
    identified = finite and _tells_states_apart(cmdp)
    kind = config.model.belief
    if kind == "exact" and not identified:
        raise ConfigError(
            "`belief` can be 'exact' only where the problem is finite and what is seen tells its "
            "states apart. Let it be 'learned'."
        )
    if kind == "auto":
        shape = jax.eval_shape(cmdp.observe, _any_state(cmdp)).shape
        kind = "exact" if identified and len(shape) < 3 else "learned"
    swept = config.sweep and filter is None and config.model.core == "none"
    return Learner(
        cmdp, filter or ExactFilter(cmdp), model, config, kind == "learned", finite and swept
    )


def _any_state(cmdp: CMDP) -> Any:
    return jax.eval_shape(cmdp.reset, jax.random.key(0), jnp.asarray(0))


def _tells_states_apart(cmdp: TabularCMDP) -> bool:
    seen = np.asarray(cmdp.observation_array()).reshape(cmdp.num_states, -1)
    return len(np.unique(seen, axis=0)) == cmdp.num_states


def make_policy(
    learner: Learner, numbers: Numbers, networks: Networks, place: int
) -> NetworkPolicy:
    """The policy of one member."""
    own = _pick(networks, jnp.asarray(place))
    if own.posterior is None:
        assert isinstance(learner.cmdp, TabularCMDP)
        tracker = FilterTracker(learner.cmdp)
    else:
        tracker = own.posterior
    return NetworkPolicy(
        tracker, own.values, numbers.baseline[place], numbers.scale[place], learner.cmdp.gamma
    )


@eqx.filter_jit
def _pick(networks: Networks, place: Int[Array, ""]) -> Networks:
    """Compiled as one: array by array it would be a small program for every shape."""
    return jax.tree.map(itemgetter(place), networks)


class _Certifier:
    """Judges policies of finite problems by their normalised regret, which is certain."""

    def __init__(
        self,
        cmdp: TabularCMDP,
        rewards: Sequence[PredictiveReward | ArrayLike],
        config: BayesConfig,
        exploration_states: Sequence[int | str] | None,
    ):
        self._cmdp = cmdp
        if exploration_states is None:
            exploration_states = cmdp.task.exploration_states if cmdp.task else ()
        solved: dict[bytes, tuple[BayesSolution, float | None]] = {}
        self._members = []
        for reward in rewards:
            table = np.asarray(
                reward.table() if isinstance(reward, PredictiveReward) else reward, np.float64
            )
            if table.tobytes() not in solved:
                never = never_exploring_value(cmdp, table, exploration_states, config)
                solved[table.tobytes()] = (solve_bayes(cmdp, table, config), never)
            self._members.append((table, *solved[table.tobytes()]))

    def score(
        self, learner: Learner, numbers: Numbers, networks: Networks, best: Best
    ) -> np.ndarray:
        """The normalised regrets of all members; where exploring brings nothing to divide by, what
        is lost as a share of the reward's range.

        Who has reached the target stays there: no better policy is looked for.
        """
        target = learner.config.target_regret
        scores = np.array(best.score, np.float64)
        for place in np.flatnonzero(~(scores <= target)).tolist():
            policy = make_policy(learner, numbers, networks, place)
            if learner.learn_belief:
                scores[place] = self._score(policy, place, (COARSE,))
            if not learner.learn_belief or scores[place] <= target:
                scores[place] = self._score(policy, place, _resolutions(policy))
        return scores

    def _score(self, policy: NetworkPolicy, place: int, resolutions: Sequence[float]) -> float:
        found = self._regret(policy, place, resolutions)
        if found.normalised is None or np.isinf(found.normalised):
            return found.absolute / np.ptp(self._members[place][0])
        return found.normalised

    def _regret(self, policy: NetworkPolicy, place: int, resolutions: Sequence[float]) -> Regret:
        """By the first of the resolutions at which all that matters could be followed."""
        table, optimum, never = self._members[place]
        most = np.ptp(table) / (1 - self._cmdp.gamma)
        value = -np.inf
        for resolution in resolutions:
            lower, upper = policy_value(
                policy,
                self._cmdp,
                reward=table,
                tolerance=_VALUE_TOLERANCE,
                resolution=resolution,
            )
            value = max(value, lower)
            if upper - lower <= 10 * _VALUE_TOLERANCE * most:
                break
        return Regret(value, optimum.upper, never)

    def enough(self, learner: Learner, best: Best, last_stage: bool) -> bool:
        return bool((best.score <= learner.config.target_regret).all())

    def conclude(
        self, policy: NetworkPolicy, place: int, history: Sequence[Event]
    ) -> LearnedPolicy:
        _, optimum, _ = self._members[place]
        regret = self._regret(policy, place, _resolutions(policy))
        return LearnedPolicy(policy, regret, optimum, None, _of_member(history, place))


def _resolutions(policy: NetworkPolicy) -> tuple[float, ...]:
    return (SAME_MEMORY, COARSE) if isinstance(policy.tracker, Posterior) else (SAME_MEMORY,)


class _Player:
    """Judges policies of simulators by their return, in the same episodes each time."""

    def score(
        self, learner: Learner, numbers: Numbers, networks: Networks, best: Best
    ) -> np.ndarray:
        return -np.asarray(_play(learner, numbers, networks))

    def enough(self, learner: Learner, best: Best, last_stage: bool) -> bool:
        return last_stage and bool((best.num_since >= learner.config.patience).all())

    def conclude(
        self, policy: NetworkPolicy, place: int, history: Sequence[Event]
    ) -> LearnedPolicy:
        own = _of_member(history, place)
        best = max(metric_values("return", event.metrics["return"]).item() for event in own)
        return LearnedPolicy(policy, None, None, best, own)


_EPISODES, _TIMES_HORIZON = 256, 3


@eqx.filter_jit
def _play(learner: Learner, numbers: Numbers, networks: Networks) -> Float[Array, " member"]:
    """The mean discounted return of every member, by the normalised reward."""
    horizon = int(np.ceil(_TIMES_HORIZON / (1 - learner.cmdp.gamma)))
    discounts = learner.cmdp.gamma ** jnp.arange(horizon)

    def one(networks, numbers):
        policy = NetworkPolicy(networks.posterior, networks.values, 0.0, 1.0, learner.cmdp.gamma)

        def episode(key):
            played = rollout(learner.cmdp, policy, key, horizon=horizon)
            left = jax.tree.map(lambda leaf: leaf[:-1], played.states)
            rewards = jax.vmap(lambda state: learner.rewards(numbers, state))(left)
            gained = jnp.take_along_axis(rewards, played.actions[:, None], 1)[:, 0]
            return (gained * discounts).sum()

        return jax.vmap(episode)(jax.random.split(jax.random.key(0), _EPISODES)).mean()

    return jax.vmap(one)(networks, numbers)


def _drive(
    learner: Learner,
    numbers: Numbers,
    states: LearnerState,
    best: Best,
    judge: Any,
    measure: Measure | None,
    run: Run,
    callbacks: Sequence[Callback],
) -> tuple[Best, list[Event]]:
    """Both stages in chunks, with everybody told, evaluations and checkpoints in between."""
    config = learner.config
    history = [event for event in run.events() if event.phase in ("policy", "settling-policy")]
    rounds = 0 if learner.expected else config.max_rounds
    stages = (
        ("policy", learning.learn_features, 0, config.num_iterations),
        ("settling-policy", learning.settle, config.num_iterations, rounds),
    )
    judged = "regret" if isinstance(judge, _Certifier) else "return"
    if measure is not None and not history:  # what it is before anything is learned
        event = Event(stages[0][0], 0, _measure_all(measure, learner, numbers, states.average))
        history.append(event)
        run.record(event)
    try:
        for phase, advance, begin, total in stages:
            last_stage = begin + total == config.num_iterations + rounds
            size = min(config.evaluate_every, total)
            if int(states.step.max()) == begin:  # each stage has its own chance to improve
                best = best._replace(num_since=jnp.zeros_like(best.num_since))
            while (done := int(states.step.max())) < begin + total and not judge.enough(
                learner, best, last_stage
            ):
                size = min(size, begin + total - done)
                states, metrics = advance(learner, states, numbers, size)
                scores = judge.score(learner, numbers, states.average, best)
                best = _keep(best, states.average, jnp.asarray(scores, jnp.float32))
                found = {judged: scores if judged == "regret" else -scores}
                if measure is not None:
                    found |= _measure_all(measure, learner, numbers, states.average)
                event = _event(phase, done - begin + size, total, metrics, found)
                history.append(event._replace(total=None))
                run.record(event)
                for callback in callbacks:
                    callback(event)
                run.checkpoint(int(states.step.max()), (states, best), phase="policy")
    finally:  # also when somebody interrupts
        run.checkpoint(int(states.step.max()), (states, best), force=True, phase="policy")
    return best, history


def _measure_all(
    measure: Measure, learner: Learner, numbers: Numbers, networks: Networks
) -> dict[str, np.ndarray]:
    found = [
        measure(make_policy(learner, numbers, networks, place))
        for place in range(len(numbers.baseline))
    ]
    return {name: np.array([one[name] for one in found]) for name in found[0]}


@eqx.filter_jit
def _keep(best: Best, networks: Networks, scores: Float[Array, " member"]) -> Best:
    """The better of what there was and what there is, member by member."""
    better = scores < best.score

    def choose(new, old):
        return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return Best(
        jax.tree.map(choose, networks, best.networks),
        jnp.where(better, scores, best.score),
        jnp.where(better, 0, best.num_since + 1),
    )


def _event(
    phase: str, step: int, total: int, metrics: Metrics, measured: dict[str, np.ndarray]
) -> Event:
    last = {name: np.asarray(part)[:, -1].tolist() for name, part in metrics._asdict().items()}
    return Event(phase, step, {n: v.tolist() for n, v in measured.items()} | last, total)


def _of_member(history: Sequence[Event], place: int) -> tuple[Event, ...]:
    return tuple(
        event._replace(metrics={n: np.asarray(v)[place].item() for n, v in event.metrics.items()})
        for event in history
    )
