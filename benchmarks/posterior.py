"""How an Adam ascent of tiger-treasure's log posterior compares with the exact maximum.

The posterior is so flat that two rewards far apart explain the demonstrations almost equally well;
see docs/decisions/0004-the-maximum-of-the-posterior.md.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

from bigtrain import IRLConfig, demonstrate, envs, exact
from bigtrain.finite import FiniteInference
from bigtrain.reward import expert_data, irl

STEPS = (100, 300, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000)
LEARNING_RATE = 0.01


def main() -> None:
    """Climbs, and prints the rescaled reward along the way."""
    env = envs.make("tiger-treasure")
    assert env.task is not None
    demonstrations = demonstrate(
        env, env.task.reward, episodes=100, horizon=50, contexts=np.arange(100) % 2
    )
    config = IRLConfig()
    best = exact.map_reward(env, demonstrations, config)
    data = expert_data(env, demonstrations.trajectories(env), FiniteInference(env))
    reward = np.repeat(best.posterior.mean[:, None], env.num_actions, axis=1)
    policy = exact.plan(env, reward).policy
    with jax.enable_x64(True):
        successor_features = jnp.asarray(exact.successor_features(env, policy, data.visited))

        def loss(weights):
            return -irl.log_posterior(weights, successor_features, data, config)

        optimiser = optax.adam(LEARNING_RATE)

        def climb(carry, _):
            weights, state = carry
            updates, state = optimiser.update(jax.grad(loss)(weights), state)
            weights = jnp.asarray(optax.apply_updates(weights, updates))
            return (weights, state), weights

        start = jnp.zeros(env.num_features)
        _, path = jax.lax.scan(climb, (start, optimiser.init(start)), length=max(STEPS))
        rows = {f"{step:,}": path[step - 1] for step in STEPS}
        rows["maximum"] = jnp.asarray(best.posterior.mean)
        table = Table(title=f"tiger-treasure, Adam at a rate of {LEARNING_RATE}")
        for column in ("steps", *env.state_names, "falls short by"):
            table.add_column(column, justify="right")
        for name, weights in rows.items():
            low, high = weights.min(), weights.max()
            stretched = (weights - low) / (high - low) * 110 - 100
            behind = best.log_posterior + float(loss(weights))
            table.add_row(name, *(f"{value:.2f}" for value in stretched), f"{behind:.6f}")
    Console().print(table)


if __name__ == "__main__":
    main()
