"""The outside of a bundle: magic, version, length, digest, and a msgpack payload.

The payload has one spelling: keys are sorted, and every value takes its shortest form. So equal
contents have equal digests, and no key can be there twice.
"""

import hashlib
import struct
from typing import Any

import msgpack

from bigtrain.errors import (
    BundleDigestError,
    BundleLimitError,
    BundleStructureError,
    BundleTruncatedError,
    BundleVersionError,
    NotABundleError,
)
from bigtrain.storage.limits import MAX_BYTES, MAX_TEXT
from bigtrain.storage.survey import survey

MAGIC = b"\x89BIG\r\n\x1a\n"  # like PNG's, it shows whether a transfer took the file for text
VERSION = 1
"""The format that this writes, and the only one that it reads."""

_HEAD = struct.Struct("<8sIQ")  # magic, version, length of the payload
_DIGEST_BYTES = hashlib.sha256().digest_size


def seal(content: dict[str, Any]) -> bytes:
    """A bundle with this content."""
    payload = _pack(content)
    head = _HEAD.pack(MAGIC, VERSION, len(payload))
    check_size(len(head) + _DIGEST_BYTES + len(payload))
    return head + _digest(head, payload) + payload


def unseal(data: bytes) -> tuple[str, Any]:
    """The digest of a bundle, in hexadecimal, and its content."""
    check_size(len(data))
    if not data.startswith(MAGIC[: len(data)]):
        raise NotABundleError(
            "This is no bundle: it does not begin as one. Look for a `.big` file."
        )
    start = _HEAD.size + _DIGEST_BYTES
    if len(data) < start:
        raise BundleTruncatedError(
            f"A bundle must have {start} bytes or more, got {len(data)}. Copy it again."
        )
    _, version, length = _HEAD.unpack_from(data)
    if version != VERSION:
        raise BundleVersionError(
            f"The bundle must be in version {VERSION} of the format, got {version}. "
            + ("Upgrade `big-imitation`." if version > VERSION else "Write it anew.")
        )
    view = memoryview(data)
    head, digest, payload = view[: _HEAD.size], view[_HEAD.size : start], view[start:]
    if len(payload) < length:
        raise BundleTruncatedError(
            f"The bundle must go on for {length} bytes after its head, but ends after "
            f"{len(payload)}. Copy it again."
        )
    if len(payload) > length or _digest(head, payload) != digest:
        raise BundleDigestError(
            "The bundle is not as it was written: its digest does not fit. Copy it again."
        )
    return digest.hex(), _unpack(payload)


def check_size(size: int) -> None:
    """Raises where a bundle of so many bytes would be too large."""
    if size > MAX_BYTES:
        raise BundleLimitError(f"A bundle must have at most {MAX_BYTES:,} bytes, got {size:,}.")


def _digest(head: bytes | memoryview, payload: bytes | memoryview) -> bytes:
    result = hashlib.sha256(head)
    result.update(payload)
    return result.digest()


def _pack(content: Any) -> bytes:
    try:
        return msgpack.Packer().pack(_sort(content))
    except OverflowError as error:
        raise BundleLimitError("A whole number must fit 64 bits to be stored.") from error


def _sort(content: Any) -> Any:
    """The same with the keys of every map in order."""
    if isinstance(content, dict):
        if not all(isinstance(key, str) for key in content):
            raise BundleStructureError("The keys of every map must be text.")
        return {key: _sort(content[key]) for key in sorted(content)}
    if isinstance(content, list):
        return [_sort(part) for part in content]
    return content


def _unpack(payload: memoryview) -> Any:
    survey(payload)
    try:
        content = msgpack.unpackb(payload, max_str_len=MAX_TEXT)
    except (ValueError, msgpack.UnpackException) as error:
        raise BundleStructureError(f"The payload must be msgpack ({error}).") from error
    if _pack(content) != payload:
        raise BundleStructureError(
            "The payload must be spelled as we do, with sorted keys, each once, and every value "
            "in its shortest form."
        )
    return content
