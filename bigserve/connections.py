"""Connections: how many, how long they may be silent, and the descriptors that they need."""

import resource
from typing import Any

from bigserve.config import LimitsConfig
from bigserve.errors import ConfigError

OWN_DESCRIPTORS = 128
"""Descriptors for all else: files, the log, metrics, the event loop."""

_PING_SECONDS, _PING_PATIENCE = 60, 20
"""When a connection that is silent in the midst of calls is asked whether it is there, and how long
it may take to answer."""


def options(limits: LimitsConfig) -> list[tuple[str, Any]]:
    """What gRPC is told of the limits."""
    return [
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),  # or a second server would take half of the calls
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.max_concurrent_streams", limits.max_calls_per_connection),
        ("grpc.server_handshake_timeout_ms", round(1000 * limits.handshake_timeout)),
        ("grpc.max_connection_idle_ms", round(1000 * limits.idle_timeout)),
        ("grpc.keepalive_time_ms", 1000 * _PING_SECONDS),
        ("grpc.keepalive_timeout_ms", 1000 * _PING_PATIENCE),
    ]


def reserve_descriptors(num_connections: int) -> None:
    """Sees to it that so many connections leave descriptors for all else."""
    needed = num_connections + OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"`max_connections` must leave {OWN_DESCRIPTORS} of the process's descriptors, of "
            f"which it may have {hard}, got {num_connections}. Give it more (LimitNOFILE= in a "
            "systemd unit, or `ulimit -n`), or take fewer connections."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
