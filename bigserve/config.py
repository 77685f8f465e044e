"""The settings of a server: nested, frozen, checked where they are made. Each is a flag as well."""

import ipaddress
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, get_args

import tyro

from bigserve.errors import ConfigError

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

OptionalFile = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
OptionalFolder = Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")]
OptionalAddress = Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT", help_behavior_hint="")]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of models and callers: safe in a path, in a metric's label and in a line of the log."""

_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>[0-9]{1,5})")
_LONGEST_SOCKET_PATH = 107  # bytes that a Unix socket's address has room for
_BLOCK = 32  # `bigtrain.policy.BLOCK`, without what its import brings along
_MOST = 2**31 - 1  # that fits the wire, and gRPC's own options
_LONGEST_TIMEOUT = 1e6  # in milliseconds it must fit as well


def _check_count(name: str, value: int, least: int) -> None:
    if not least <= value <= _MOST:
        raise ConfigError(f"`{name}` must be from {least} to {_MOST}, got {value}.")


def _check_seconds(name: str, value: float) -> None:
    if not 0 <= value <= _MOST:
        raise ConfigError(f"`{name}` must be from 0 to {_MOST} seconds, got {value}.")


@dataclass(frozen=True)
class LimitsConfig:
    """What the server takes on at most, and how long it keeps it."""

    max_episodes: int = 4096
    """Open episodes of all callers together."""

    max_episodes_per_caller: int = 4096
    """Open episodes of one caller."""

    max_items: int = 1024
    """Steps or episodes in one message."""

    max_message_bytes: int = 4 * 2**20
    """Bytes in one message."""

    max_queued_steps: int = 8192
    """Steps that may wait for their batch; more are told to come again later."""

    max_connections: int = 1024
    """Connections; more are closed at once."""

    max_streams: int = 1024
    """Streams that all callers together have open."""

    max_streams_per_caller: int = 256
    """Streams that one caller has open."""

    max_calls: int = 4096
    """Calls other than streams that all callers together have under way."""

    max_calls_per_caller: int = 1024
    """Calls other than streams that one caller has under way."""

    max_calls_per_connection: int = 256
    """Calls and streams on one connection; the client's gRPC makes more wait."""

    max_unanswered: int = 1024
    """Requests of one stream without a reply; the stream is not read from until one is written."""

    max_held_bytes: int = 64 * 2**20
    """Bytes of requests without a reply, and of replies that clients have not read."""

    max_held_bytes_per_caller: int = 16 * 2**20
    """Such bytes of one caller."""

    max_held_bytes_per_stream: int = 4 * 2**20
    """Such bytes of one stream; it is not read from until some are gone."""

    handshake_timeout: float = 10.0
    """Seconds that a new connection may take to speak HTTP/2, and TLS before it."""

    idle_timeout: float = 300.0
    """Seconds after which a connection without calls is closed; clients open another unseen."""

    message_timeout: float = 60.0
    """Seconds that the message of a call may take to arrive."""

    stall_timeout: float = 30.0
    """Seconds that a client may take to read a reply of a stream before the stream ends."""

    default_lease: float = 300.0
    """Seconds that an episode may rest between steps if its caller does not say."""

    max_lease: float = 3600.0
    """Seconds that a caller may ask for at most."""

    tombstone_lifetime: float = 3600.0
    """Seconds that a closed episode is remembered, with when and why it closed."""

    max_tombstones_per_caller: int = 0
    """Closed episodes of one caller that are remembered; 0: four for each that it may have open."""

    @property
    def tombstones_per_caller(self) -> int:
        """How many closed episodes of one caller are remembered."""
        most = min(self.max_episodes_per_caller, self.max_episodes)
        return self.max_tombstones_per_caller or min(4 * most, _MOST)

    def __post_init__(self):
        counts = (field.name for field in fields(self) if field.name.startswith("max_"))
        for name in counts:
            if name != "max_lease":
                least = 0 if name == "max_tombstones_per_caller" else 1
                _check_count(name, getattr(self, name), least)
        _check_count("max_message_bytes", self.max_message_bytes, 4096)  # Describe's reply must fit
        most = min(self.max_episodes_per_caller, self.max_episodes)
        if self.tombstones_per_caller < most:
            raise ConfigError(
                f"`max_tombstones_per_caller` must be at least {most}, which a caller may have "
                "open, or not all would be remembered that expire at once; got "
                f"{self.max_tombstones_per_caller}."
            )
        if self.max_queued_steps < self.max_items:
            raise ConfigError(
                f"`max_queued_steps` must be at least `max_items`, {self.max_items}, or a full "
                f"message is never taken; got {self.max_queued_steps}."
            )
        for name in ("default_lease", "max_lease", "tombstone_lifetime"):
            _check_seconds(name, getattr(self, name))
        for name in ("handshake_timeout", "idle_timeout", "message_timeout", "stall_timeout"):
            if not 0.001 <= getattr(self, name) <= _LONGEST_TIMEOUT:
                raise ConfigError(
                    f"`{name}` must be from 0.001 to {_LONGEST_TIMEOUT:g} seconds, "
                    f"got {getattr(self, name)}."
                )
        if not 0 < self.default_lease <= self.max_lease:
            raise ConfigError(
                f"`default_lease` must be above 0 and at most `max_lease`, {self.max_lease}, "
                f"got {self.default_lease}."
            )


@dataclass(frozen=True)
class BatchingConfig:
    """How steps are gathered into batches."""

    sizes: tuple[int, ...] = (32, 64, 256, 1024)
    """The batch sizes that are compiled; a batch is padded to the next of them."""

    def __post_init__(self):
        rising = all(a < b for a, b in zip(self.sizes, self.sizes[1:], strict=False))
        if not self.sizes or not rising or any(s < 1 or s % _BLOCK for s in self.sizes):
            raise ConfigError(
                f"`sizes` must be rising multiples of {_BLOCK}, got {list(self.sizes)}."
            )


@dataclass(frozen=True)
class TLSConfig:
    """Encryption; files that change are read again."""

    certificate: OptionalFile = None
    """The server's certificate and those between it and its root (PEM)."""

    key: OptionalFile = None
    """Its private key (PEM, not encrypted)."""

    client_roots: OptionalFile = None
    """Roots (PEM) that clients' certificates must come from; without it clients need none."""

    def __post_init__(self):
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("`certificate` and `key` must be given together.")
        if self.client_roots is not None and self.certificate is None:
            raise ConfigError("`client_roots` must come with a `certificate` and `key` of ours.")


@dataclass(frozen=True)
class ServerConfig:
    """All settings of a server but what it serves."""

    listen: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = "127.0.0.1:8500"
    """Where to listen: HOST:PORT, [IPv6]:PORT or unix:/PATH; port 0 picks a free one."""

    insecure: bool = False
    """Listen beyond this machine without TLS: everybody on the way can read and alter all."""

    tokens: OptionalFile = None
    """Who may call, a line each: NAME, `caller` or `operator`, and a token."""

    admin: bool = True
    """Whether to offer the Admin service, to operators."""

    model_directory: OptionalFolder = None
    """Where LoadModel may read; by default the directory of the first model."""

    seal_key: OptionalFile = None
    """The key, 32 bytes or more, of servers that pass episodes on; by default one of our own."""

    snapshot: OptionalFile = None
    """Where episodes wait between a shutdown and the next start."""

    grace: float = 30.0
    """Seconds that episodes get to end at a shutdown, if there is no snapshot to keep them."""

    metrics_listen: OptionalAddress = None
    """Where Prometheus finds the metrics, at /metrics; by default nowhere."""

    log_level: LogLevel = "info"
    """The least that is logged."""

    log_format: LogFormat = "text"
    """Lines for people, or JSON for programs; both go to standard error."""

    log_rate: int = 60
    """Lines a minute from one place in the code; the next line says how many were left out."""

    limits: LimitsConfig = LimitsConfig()
    batching: BatchingConfig = BatchingConfig()
    tls: TLSConfig = TLSConfig()

    def __post_init__(self):
        if self.listen.startswith("unix:"):
            _check_socket(self.listen)
        else:
            split_address("listen", self.listen)
        if self.metrics_listen is not None:
            split_address("metrics_listen", self.metrics_listen)
        if not (self.insecure or self.tls.certificate or is_loopback(self.listen)):
            raise ConfigError(
                f"Beyond this machine, at {self.listen}, there must be TLS. Give `tls.certificate` "
                "and `tls.key`, listen on 127.0.0.1, or allow plain text by `insecure`."
            )
        if self.batching.sizes[-1] < self.limits.max_items:
            raise ConfigError(
                f"The last of `sizes` must be at least `max_items`, {self.limits.max_items}, so "
                f"that every message fits a batch; got {self.batching.sizes[-1]}."
            )
        _check_seconds("grace", self.grace)
        _check_count("log_rate", self.log_rate, 1)
        # Found out at a shutdown, it would be too late.
        if self.snapshot and not os.access(self.snapshot.parent, os.W_OK | os.X_OK):
            raise ConfigError(
                f"`snapshot` must be in a directory we may write to, got {self.snapshot}."
            )
        for name, choices in (("log_level", LogLevel), ("log_format", LogFormat)):
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(
                    f"`{name}` must be one of {', '.join(get_args(choices))}, "
                    f"got {getattr(self, name)!r}."
                )


def is_loopback(listen: str) -> bool:
    """Whether only this machine can reach the address; a name other than localhost counts as not.

    Whatever is not plainly loopback is not: resolving names would make safety depend on the DNS.
    """
    if listen.startswith("unix:"):
        return True
    match = _ADDRESS.fullmatch(listen)
    if match is None:
        return False
    host = match["v6"] or match["host"]
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def split_address(name: str, address: str) -> tuple[str, int]:
    """The host, without brackets, and the port of the setting `name`."""
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535 or not _is_v6(match["v6"]):
        raise ConfigError(
            f"`{name}` must be HOST:PORT, or [IPv6]:PORT in brackets, got {address!r}. "
            "For every interface the host is 0.0.0.0 or [::]."
        )
    return match["v6"] or match["host"], int(match["port"])


def _is_v6(host: str | None) -> bool:
    try:
        return host is None or ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _check_socket(listen: str) -> None:
    path = listen.removeprefix("unix:")
    if not path.startswith("/") or not 1 < len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        raise ConfigError(
            f"`listen` must have an absolute path of at most {_LONGEST_SOCKET_PATH} bytes after "
            f"unix:, got {listen!r}."
        )
