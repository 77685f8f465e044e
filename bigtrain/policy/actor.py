"""A policy as an actor: played in a simulator as a robot would play it."""

from typing import Any, ClassVar, final

import equinox as eqx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bigtrain.policy.base import Policy
from bigtrain.problem import Actor, Simulator, State, Trajectories, draw_index


@final
class PolicyActor(Actor):
    """Sees what the agent sees; notes what it believes."""

    num_draws: ClassVar[int] = 1
    simulator: Simulator
    policy: Policy

    def init(self, env: Int[Array, ""], context: Int[Array, ""]) -> Any:
        return self.policy.init()

    def act(
        self, memory: Any, state: State, previous_action: Int[Array, ""], draws: Float[Array, "1"]
    ) -> tuple[Any, Int[Array, ""], Any]:
        seen = self.simulator.observe(state)
        memory, decision = self.policy.step(memory, seen, previous_action)
        # By the inverse of the cumulative probabilities, with one uniform number drawn beforehand.
        return memory, draw_index(decision.probs, draws[0]), decision.belief


def play(
    simulator: Simulator, actor: Actor, key: PRNGKeyArray, *, episodes: int, horizon: int
) -> Trajectories:
    """Episodes of so many steps, one a row, compiled where that can be."""
    if simulator.is_traceable:
        return _play(simulator, actor, key, episodes, horizon)
    return simulator.collect(actor, key, num_envs=episodes, horizon=horizon, restart=False)


@eqx.filter_jit
def _play(
    simulator: Simulator, actor: Actor, key: PRNGKeyArray, episodes: int, horizon: int
) -> Trajectories:
    return simulator.collect(actor, key, num_envs=episodes, horizon=horizon, restart=False)
