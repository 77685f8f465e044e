"""How a connection is made: address, credentials and options, as gRPC wants them."""

import dataclasses
import re
from typing import Any

import grpc

from .errors import ConfigError
from .settings import TLS

_LOOPBACK = re.compile(r"(localhost|127(\.\d+){3}|\[::1\]):\d+|unix(-abstract)?:.+")


@dataclasses.dataclass(frozen=True)
class Target:
    """Where to connect, and what every call carries."""

    address: str
    credentials: grpc.ChannelCredentials | None
    options: tuple[tuple[str, Any], ...]
    compression: grpc.Compression
    metadata: tuple[tuple[str, str], ...]


def make_target(
    address: str, token: str | None, tls: TLS | None, insecure: bool, compression: bool
) -> Target:
    """What the two kinds of channel are opened with."""
    if "://" in address or not re.fullmatch(r".+:(\d+|.*/.*)|unix(-abstract)?:.+", address):
        raise ConfigError(f"`address` must be host:port, as in localhost:8500, got {address!r}.")
    if token and tls is None and not insecure and not _LOOPBACK.fullmatch(address):
        raise ConfigError(
            f"`token` must not travel in the clear, and {address} is not this machine: give `tls`, "
            "as in `tls=TLS(roots=...)`, or `insecure=True` in a network that you trust."
        )
    # The connection is the client's own, and comes back soon after a server does.
    options: list[tuple[str, Any]] = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.max_receive_message_length", -1),
    ]
    credentials = None
    if tls is not None:
        credentials = grpc.ssl_channel_credentials(tls.roots, tls.key, tls.certificate)
        if tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", tls.server_name))
    return Target(
        address=address,
        credentials=credentials,
        options=tuple(options),
        compression=grpc.Compression.Gzip if compression else grpc.Compression.NoCompression,
        metadata=(("authorization", f"Bearer {token}"),) if token else (),
    )
