"""How far an attack is, on the terminal: shown by `pytest -s`, as `make attack` runs it."""

import time

SECONDS = 30.0
"""From one line to the next."""


class Progress:
    """Says now and then how much is done, at which rate, and what else there is to say."""

    def __init__(self, what: str, count: int):
        self._what, self._count = what, count
        self._began = self._told = time.monotonic()

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._told >= SECONDS

    def tell(self, done: int, **more: object) -> None:
        """Says it now."""
        self._told = time.monotonic()
        seconds = self._told - self._began
        parts = [
            f"{self._what}: {done:,} of {self._count:,}",
            f"{seconds:.0f} s",
            f"{done / max(seconds, 1e-3):.0f} a second",
            *(f"{name.replace('_', ' ')} {value}" for name, value in more.items()),
        ]
        print(f"\n{', '.join(parts)}", end="", flush=True)
