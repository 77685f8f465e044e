"""What all tests share."""

import gc
from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_code() -> Iterator[None]:
    """Lets go of a file's compiled programs after its tests.

    Each takes memory maps, of which a process may have some 65,000; all tests together need more.
    """
    yield
    jax.clear_caches()
    gc.collect()
