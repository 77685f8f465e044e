"""Several devices: the same results as with one, up to the order of floating-point sums."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

LEARN = textwrap.dedent(
    """
    import json, sys
    import jax, numpy as np
    from bigtrain import bayes_rl, envs
    from bigtrain.bayes_rl import BayesRLConfig, RolloutConfig
    from bigtrain.learning import NetworkConfig, advance
    from bigtrain.phases import init_policies, route
    from bigtrain.policy import PolicyConfig

    env = envs.make("tiger-treasure")
    model = PolicyConfig(network=NetworkConfig(width=16), belief=sys.argv[1])
    rollout = RolloutConfig(num_environments=16, horizon=8, batch_size=16, hyperstate_batch_size=32)
    config = BayesRLConfig(model=model, rollout=rollout, num_iterations=4, num_updates=2)
    chosen = route(env)
    rewards, members = chosen.rewards([env.task.reward], [1e-3], None)
    learner, (stage, *_) = chosen.learner(chosen.exact_inference(), rewards, config)
    states, metrics = advance(stage, init_policies(learner, [0]), members, 4)
    spread = {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(states.average)}
    leaves = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(states.average)]
    print(json.dumps([jax.device_count(), max(spread), leaves, np.asarray(metrics.loss).tolist()]))
    """
)


def learn(num_devices: int, belief: str) -> list:
    # What is asked is where arrays are and what comes out, so the compiler may take it easy.
    flags = (
        f"--xla_force_host_platform_device_count={num_devices} --xla_backend_optimization_level=0"
    )
    environment = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", LEARN, belief],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(  # one that learns the belief sweeps values as well
    "belief", [pytest.param("exact", marks=pytest.mark.slow), "learned"]
)
def test_four_devices_learn_what_one_does(belief):
    count, _, alone, loss = learn(1, belief)
    assert count == 1
    count, used, together, losses = learn(4, belief)
    assert count == 4 and used == 4
    np.testing.assert_allclose(losses, loss, rtol=1e-3, atol=1e-6)
    for one, four in zip(alone, together, strict=True):
        # Adam divides by small second moments, which lets the order of sums show.
        np.testing.assert_allclose(four, one, rtol=1e-2, atol=1e-3)
