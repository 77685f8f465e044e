"""Successors that are named more than once count as one."""

import tracemalloc

import numpy as np
import pytest

from bigtrain.finite import transitions
from bigtrain.finite.transitions import Transitions


@pytest.mark.parametrize("seed", range(3))
def test_repeated_successors_are_merged(seed):
    rng = np.random.default_rng(seed)
    successors = rng.integers(5, size=(5, 3, 4))
    probabilities = rng.dirichlet(np.ones(4), (2, 5, 3))
    found = transitions.check(Transitions(successors, probabilities))
    for context, state, action in np.ndindex(2, 5, 3):
        want, have = np.zeros(5), np.zeros(5)
        np.add.at(want, successors[state, action], probabilities[context, state, action])
        row = found.probabilities[context, state, action]
        np.add.at(have, found.successors[state, action], row)
        np.testing.assert_allclose(have, want, atol=1e-15)
        used = found.successors[state, action][row > 0]
        assert len(set(used.tolist())) == len(used), "a state has two places"


def test_merging_many_successors_takes_memory_in_their_number():
    """Comparing every pair of 400 successors would take 400 bytes for each."""
    successors = np.tile(np.arange(400), (400, 1, 1))
    successors[0, 0, 1] = 0
    given = Transitions(successors, np.full((1, 400, 1, 400), 1 / 400))
    tracemalloc.start()
    transitions.check(given)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * successors.size
