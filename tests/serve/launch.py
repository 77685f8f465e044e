"""Starts the real server as its users do: `python -m bigserve`, a process of its own."""

import contextlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

TIGER = Path(__file__).parent.parent / "data" / "exact-v1.big"
"""Tiger-treasure, solved exactly."""

QUICK: dict[str, object] = {"batching.sizes": 64, "limits.max-items": 64}
"""Flags of servers that live briefly: they have less to compile."""

START_SECONDS = 120
STOP_SECONDS = 60


class Server:
    """A running server. What it logs is kept, and shown when it fails to start."""

    def __init__(self, model: Path, flags: Mapping[str, object]):
        command = [sys.executable, "-m", "bigserve", f"tiger={model}", "--listen", "127.0.0.1:0"]
        for name, value in flags.items():
            command += [f"--{name}", str(value)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._log: list[str] = []
        self._ended = False
        self._logged = threading.Condition()
        threading.Thread(target=self._read_log, daemon=True).start()
        try:
            self.address = self.await_log(r"listening on ([^\s\"]+:\d+)", START_SECONDS)[1]
        except TimeoutError:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        with self._logged:
            return "".join(self._log)

    def await_log(
        self, pattern: str, timeout: float = STOP_SECONDS, *, count: int = 1
    ) -> re.Match[str]:
        """Waits until the pattern has been logged so many times; the last of these."""
        found: list[re.Match[str]] = []

        def is_logged() -> bool:
            found[:] = re.finditer(pattern, "".join(self._log))
            return self._ended or len(found) >= count

        with self._logged:
            self._logged.wait_for(is_logged, timeout)
            if len(found) < count:
                raise TimeoutError(
                    f"The server must log {pattern!r}, logged:\n{''.join(self._log)}"
                )
        return found[count - 1]

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> int:
        """Asks it to end, and waits; its exit code."""
        self.send(signal.SIGTERM)
        return self._process.wait(STOP_SECONDS)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._logged:
                self._log.append(line)
                self._logged.notify_all()
        with self._logged:
            self._ended = True
            self._logged.notify_all()


@contextlib.contextmanager
def serving(model: Path = TIGER, /, **flags: object) -> Iterator[Server]:
    """A server with these flags, for as long as the block runs."""
    server = Server(model, flags)
    try:
        yield server
    finally:
        server.kill()
