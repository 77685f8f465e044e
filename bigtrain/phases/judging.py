"""How good policies are while they learn: judges of phase 3, and who keeps the best policy."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bigtrain.bayes_rl import Learner, MemberParams, Networks
from bigtrain.evaluate import Regret
from bigtrain.learning import Judge, MemberMetrics, Stage, pick
from bigtrain.policy import NetworkPolicy, PolicyActor
from bigtrain.problem import Trajectories
from bigtrain.runs import Event, metric_values

Measure = Callable[[NetworkPolicy], Mapping[str, float]]
"""What else is to be known of a policy whenever it is judged, by name."""


class Verdict(NamedTuple):
    """The best networks of every member so far, by `score`; and evaluations since they came."""

    networks: Networks
    score: Float[Array, " member"]
    num_since: Float[Array, " member"]


class Known(NamedTuple):
    """What is known of a policy in the end: what was proved of it, and what it was seen to get."""

    regret: Regret | None
    certificate: Any
    discounted_return: float | None


class PolicyJudge(Judge):
    """Keeps each member's best policy. The smaller a score the better."""

    def __init__(self, learner: Learner, members: MemberParams, measure: Measure | None = None):
        self.learner, self.members, self._measure = learner, members, measure

    def init(self, states: Any) -> Verdict:
        count = len(self.members.baseline)
        return Verdict(states.average, jnp.full(count, jnp.inf), jnp.zeros(count))

    def begin(self, stage: Stage, verdict: Verdict) -> Verdict:
        """Each stage has its own chance to improve."""
        return verdict._replace(num_since=jnp.zeros_like(verdict.num_since))

    def judge(self, states: Any, verdict: Verdict) -> tuple[Verdict, MemberMetrics]:
        scores, told = self.score(states.average, verdict)
        verdict = _keep(verdict, states.average, jnp.asarray(scores, jnp.float32))
        return verdict, told | self.measure(states)

    def measure(self, states: Any) -> MemberMetrics:
        """What else was asked for, of the policies of the moment."""
        if self._measure is None:
            return {}
        found = [self._measure(self.policy(states.average, i)) for i in range(self.num_members)]
        return {name: np.array([one[name] for one in found]) for name in found[0]}

    @property
    def num_members(self) -> int:
        return len(self.members.baseline)

    def policy(self, networks: Networks, place: int) -> NetworkPolicy:
        """The policy of one member."""
        return self.learner.policy(*pick((networks, self.members), jnp.asarray(place)))

    @abc.abstractmethod
    def score(
        self, networks: Networks, verdict: Verdict
    ) -> tuple[Float[np.ndarray, " member"], MemberMetrics]:
        """Scores of all members, and what to tell of them."""

    @abc.abstractmethod
    def conclude(self, policy: NetworkPolicy, place: int, history: Sequence[Event]) -> Known:
        """What is known of one member's best policy."""


@eqx.filter_jit
def _keep(verdict: Verdict, networks: Networks, scores: Float[Array, " member"]) -> Verdict:
    better = scores < verdict.score

    def choose(new, old):
        return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return Verdict(
        jax.tree.map(choose, networks, verdict.networks),
        jnp.where(better, scores, verdict.score),
        jnp.where(better, 0, verdict.num_since + 1),
    )


_EPISODES, _TIMES_HORIZON = 256, 3


@final
class ReturnJudge(PolicyJudge):
    """By the mean discounted return, in the same episodes each time.

    Learning ends when no member has improved for `patience` evaluations of the last stage.
    """

    def score(
        self, networks: Networks, verdict: Verdict
    ) -> tuple[Float[np.ndarray, " member"], MemberMetrics]:
        simulator = self.learner.simulator
        horizon = int(np.ceil(_TIMES_HORIZON / (1 - simulator.gamma)))
        if simulator.is_traceable:
            returns = _play_members(self.learner, self.members, networks, horizon)
        else:
            returns = jnp.stack([self._play(networks, i, horizon) for i in range(self.num_members)])
        return -np.asarray(returns), {"return": np.asarray(returns)}

    def _play(self, networks: Networks, place: int, horizon: int) -> Float[Array, ""]:
        own, member = pick((networks, self.members), jnp.asarray(place))
        actor = PolicyActor(self.learner.simulator, self.learner.policy(own, member))
        played = self.learner.simulator.collect(
            actor, jax.random.key(0), num_envs=_EPISODES, horizon=horizon, restart=False
        )
        return _mean_return(self.learner, member, played)

    def enough(self, stage: Stage, states: Any, verdict: Verdict) -> bool:
        last = stage.begin + stage.total == self.learner.last_step
        return last and bool((verdict.num_since >= self.learner.config.patience).all())

    def conclude(self, policy: NetworkPolicy, place: int, history: Sequence[Event]) -> Known:
        told = [event.metrics["return"] for event in history if "return" in event.metrics]
        return Known(None, None, max(metric_values("return", value).item() for value in told))


@eqx.filter_jit
def _play_members(
    learner: Learner, members: MemberParams, networks: Networks, horizon: int
) -> Float[Array, " member"]:
    def one(networks, member):
        actor = PolicyActor(learner.simulator, learner.policy(networks, member))
        played = learner.simulator.collect(
            actor, jax.random.key(0), num_envs=_EPISODES, horizon=horizon, restart=False
        )
        return _mean_return(learner, member, played)

    return jax.vmap(one)(networks, members)


@eqx.filter_jit
def _mean_return(learner: Learner, member: MemberParams, played: Trajectories) -> Float[Array, ""]:
    """By the member's normalised reward."""
    rewards = jax.vmap(jax.vmap(lambda state: learner.rewards(member.reward, state)))(played.states)
    gained = jnp.take_along_axis(rewards, played.actions[..., None], -1)[..., 0]
    discounts = learner.simulator.gamma ** jnp.arange(gained.shape[-1])
    return (gained * discounts)[:, :-1].sum(-1).mean()
