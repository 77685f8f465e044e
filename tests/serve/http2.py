"""HTTP/2 as a hostile client speaks it: frames of its own making, over a plain socket."""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator, Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS = 0, 1, 3, 4
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def window(size: int) -> bytes:
    """Settings by which the server may send so many bytes of each stream unread."""
    return frame(SETTINGS, 0, 0, struct.pack(">HI", 4, size))


def headers(stream: int, fields: Sequence[tuple[bytes, bytes]], *, end: bool = False) -> bytes:
    """A call's headers, without compression."""
    text = b"".join(b"\0" + _length(name) + name + _length(v) + v for name, v in fields)
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, text)


def call(path: str, token: str | None = None) -> list[tuple[bytes, bytes]]:
    """The headers of a call that makes sense."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"x"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    return fields + ([(b"authorization", f"Bearer {token}".encode())] if token else [])


def message(stream: int, data: bytes, *, end: bool = False) -> bytes:
    """A message in frames of at most 16 KiB, which is what every server takes."""
    data = b"\0" + struct.pack(">I", len(data)) + data
    parts = [data[at : at + 16384] for at in range(0, len(data), 16384)]
    return b"".join(
        frame(DATA, END_STREAM if end and part is parts[-1] else 0, stream, part) for part in parts
    )


@contextlib.contextmanager
def connected(address: str, *, timeout: float = 10.0) -> Iterator[socket.socket]:
    """A connection that says nothing by itself."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout) as connection:
        yield connection


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the server closes a connection within that time, whatever it sends before."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def ends_stream(connection: socket.socket, stream: int, seconds: float) -> bool:
    """Whether the server ends a stream within that time, by its trailers or a reset."""
    until, data = time.monotonic() + seconds, b""
    while (left := until - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            data += connection.recv(65536)
        except TimeoutError:
            return False
        while len(data) >= 9 + (length := int.from_bytes(data[:3], "big")):
            kind, flags, number = data[3], data[4], int.from_bytes(data[5:9], "big")
            if number == stream and (kind == RESET or (kind == HEADERS and flags & END_STREAM)):
                return True
            data = data[9 + length :]
    return False


def _length(data: bytes) -> bytes:
    """The length of a literal, in HPACK's 7 bits and more."""
    if len(data) < 127:
        return bytes([len(data)])
    rest, found = len(data) - 127, b"\x7f"
    while rest >= 128:
        found += bytes([rest % 128 | 128])
        rest //= 128
    return found + bytes([rest])
