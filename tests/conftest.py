"""What all tests share."""

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator

import jax
import pytest

CACHE = "JAX_COMPILATION_CACHE_DIR"


def pytest_configure(config: pytest.Config) -> None:
    """What one worker, or a process that a test starts, has compiled, none compiles again.

    Most of the time of the tests is compiling, and much of it is of the same programs. The cache is
    new for every run: an old one would hide what takes long.
    """
    if CACHE not in os.environ:
        os.environ[CACHE] = tempfile.mkdtemp(prefix="big-tests-")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(CACHE)))


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_code() -> Iterator[None]:
    """Lets go of a file's compiled programs after its tests.

    Each takes memory maps, of which a process may have some 65,000; all tests together need more.
    """
    yield
    jax.clear_caches()
    gc.collect()
