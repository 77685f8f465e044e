"""What is served is what the policy does in-process, to the last bit."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from launch import QUICK, serving
from wire import ALL_DETAILS, act_request, channel_to, unpack

from bigproto.v1 import policy_pb2 as pb
from bigproto.v1 import policy_pb2_grpc
from bigtrain import load_bundle
from bigtrain.policy import BLOCK, compile_block

DATA = Path(__file__).parent.parent / "data"
NUM_EPISODES, NUM_STEPS = 40, 6


@pytest.mark.parametrize("name", ["exact-v1.big", "learned-v1.big"])
def test_served_steps_equal_the_policy_in_process(name):
    """Episodes in messages of many sizes, in an order of their own; each followed alone here."""
    bundle = load_bundle(DATA / name)
    assert bundle.problem is not None
    looks = bundle.problem.observation_array()
    rng = np.random.default_rng(0)
    # Half of them rest in the last state, which leads to itself whatever is done; the others are
    # in the first, and make one step.
    resting = rng.random(NUM_EPISODES) < 0.5
    seen = looks[np.where(resting, -1, 0)]
    served = {}
    with serving(DATA / name, **QUICK) as server, channel_to(server.address) as channel:
        stub = policy_pb2_grpc.PolicyStub(channel)
        ids = list(stub.Start(pb.StartRequest(num_episodes=NUM_EPISODES)).episode_ids)
        for step in range(NUM_STEPS):
            moving = np.flatnonzero(resting) if step else np.arange(NUM_EPISODES)
            order = rng.permutation(moving)
            for some in np.split(order, np.sort(rng.integers(0, len(order), 3))):
                if not len(some):
                    continue
                reply = stub.Act(
                    act_request(
                        [ids[place] for place in some],
                        [step] * len(some),
                        [(seen[place],) for place in some],
                        details=ALL_DETAILS,
                    )
                )
                assert not reply.errors
                columns = (reply.actions, reply.values, reply.belief, reply.entropy)
                for place, *row in zip(some, *map(unpack, columns), strict=True):
                    served[step, place] = row
    program = compile_block(bundle.policy)
    for place in range(NUM_EPISODES):
        state = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (BLOCK, *jnp.shape(leaf))), bundle.policy.init()
        )
        previous = 0
        for step in range(NUM_STEPS if resting[place] else 1):
            given = np.repeat(seen[place][None], BLOCK, 0)
            state, decision = program(state, given, jnp.full(BLOCK, previous, jnp.int32))
            action, values, belief, entropy = served[step, place]
            assert action == np.argmax(decision.probs[0])
            np.testing.assert_array_equal(values, decision.values[0])
            np.testing.assert_array_equal(belief, decision.belief.probs[0])
            np.testing.assert_array_equal(entropy, decision.belief.entropy[0])
            previous = int(action)
