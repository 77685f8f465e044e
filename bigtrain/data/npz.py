"""The `.npz` file of demonstrations: written whole or not at all, never trusted when read.

No code in a file ever runs (no pickle). Memory is taken only for sizes that the file on disk can
really hold; every member's checksum is verified before its contents are looked at.
"""

import io
import json
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from bigtrain.atomic import atomic_write
from bigtrain.errors import DemonstrationError

FORMAT = "big-demonstrations"
VERSION = 1
ARRAYS = ("observations", "actions", "lengths", "contexts")
FIELDS = ("format", "version", "metadata", *ARRAYS)

_MAX_DEFLATE_RATIO = 1032  # no deflate stream grows by more when it is unpacked
_CHUNK = 1 << 20
_CORRUPT = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    OverflowError,
    MemoryError,
    RuntimeError,  # encrypted members, unknown compression
    SyntaxError,  # from the header of an array
    tokenize.TokenError,
    ValueError,
)


def save(path: str | os.PathLike, arrays: Mapping[str, Any], metadata: Mapping) -> None:
    """Writes the whole file, or leaves what was there."""
    text = json.dumps(metadata, sort_keys=True, allow_nan=False)
    with atomic_write(path) as file:
        np.savez_compressed(file, format=FORMAT, version=VERSION, metadata=text, **arrays)


def load(path: str | os.PathLike) -> dict[str, Any]:
    """The arrays of the file, and its `metadata` as a dictionary."""
    with open(path, "rb") as file:
        try:
            return _read(path, file)
        except DemonstrationError:
            raise
        except _CORRUPT as error:
            raise DemonstrationError(
                f"`{path}` must be a file of demonstrations, but it is damaged or not an .npz "
                f"archive ({_quote(str(error) or type(error).__name__)}). Copy or write it anew."
            ) from error


def _read(path: str | os.PathLike, file: BinaryIO) -> dict[str, Any]:
    size = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if len(members) != len(archive.infolist()):
            raise DemonstrationError(f"`{path}` must hold each field once, got one twice.")
        if "format" not in members or "version" not in members:
            raise _foreign(path)
        head = [_read_member(path, archive, members[name], size) for name in ("format", "version")]
        _check_head(path, *head)
        if set(members) != set(FIELDS):
            raise DemonstrationError(
                f"`{path}` must hold exactly the fields {', '.join(FIELDS)}, "
                f"got {_quote(', '.join(sorted(members)))}."
            )
        metadata = _read_member(path, archive, members["metadata"], size)
        arrays = {name: _read_member(path, archive, members[name], size) for name in ARRAYS}
    return {"metadata": _parse_metadata(path, metadata), **arrays}


def _read_member(
    path: str | os.PathLike, archive: zipfile.ZipFile, info: zipfile.ZipInfo, archive_size: int
) -> np.ndarray:
    """One array. Its size is held against the archive's before any memory is taken."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DemonstrationError(
            f"In `{path}`, `{_quote(info.filename)}` must be stored or deflated, as numpy writes "
            f"it, got compression {info.compress_type}. Write it anew."
        )
    ratio = 1 if info.compress_type == zipfile.ZIP_STORED else _MAX_DEFLATE_RATIO
    if info.compress_size > archive_size or info.file_size > ratio * info.compress_size:
        raise DemonstrationError(
            f"`{path}` must not claim more than it holds, but `{info.filename}` claims "
            f"{info.file_size} bytes, packed in {info.compress_size} of a file of {archive_size}."
        )
    content = np.empty(info.file_size, np.uint8)
    filled = 0
    with archive.open(info) as member:  # raises BadZipFile at the end if the checksum is wrong
        while chunk := member.read(_CHUNK):
            content[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
            filled += len(chunk)
    if filled != info.file_size:
        raise EOFError(f"`{info.filename}` ends early")
    return _parse_npy(path, info.filename, content)


def _parse_npy(path: str | os.PathLike, name: str, content: np.ndarray) -> np.ndarray:
    """The array in the bytes of an .npy file, without a copy."""
    head = io.BytesIO(content[:_CHUNK].tobytes())
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(head)
    if version not in readers:
        raise DemonstrationError(f"`{path}` holds `{name}` in the unknown .npy version {version}.")
    try:
        shape, fortran_order, dtype = readers[version](head)
        if any(type(size) is not int for size in shape):  # numpy lets True pass for 1
            raise ValueError(f"the shape must be whole numbers, got {shape}")
    except Exception as error:  # numpy takes a header apart without a look at what is in it
        raise ValueError(f"the header of `{name}` says {error or type(error).__name__}") from error
    if dtype.kind not in "biufU":
        raise DemonstrationError(
            f"`{path}` must hold numbers and text only, but `{name}` has the dtype {dtype}."
        )
    claimed, held = math.prod(shape) * dtype.itemsize, len(content) - head.tell()
    if claimed != held or min(shape, default=0) < 0:
        raise DemonstrationError(
            f"`{path}` must hold as much as it claims, but `{name}` of the shape {shape} and dtype "
            f"{dtype} needs {claimed} bytes and has {held}."
        )
    order = "F" if fortran_order else "C"
    return np.ndarray(shape, dtype, buffer=content, offset=head.tell(), order=order)


def _check_head(path: str | os.PathLike, name: np.ndarray, version: np.ndarray) -> None:
    if name.shape != () or name.dtype.kind != "U" or str(name[()]) != FORMAT:
        raise _foreign(path)
    if version.shape != () or version.dtype.kind not in "iu" or int(version) != VERSION:
        raise DemonstrationError(
            f"`{path}` must be in version {VERSION} of the format, got {_quote(str(version))}. "
            "A newer `big-imitation` may read it."
        )


def _quote(text: str) -> str:
    """What came from a file, or was said of it: one line, and not too long."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= 200 else f"{line[:199]}…"


def _foreign(path: str | os.PathLike) -> DemonstrationError:
    return DemonstrationError(
        f"`{path}` must be a file of demonstrations (its field `format` being {FORMAT!r}), but it "
        "is some other .npz file. docs/demonstrations.md says how to turn arrays into one."
    )


def _parse_metadata(path: str | os.PathLike, text: np.ndarray) -> dict[str, Any]:
    parsed = None
    if text.shape == () and text.dtype.kind == "U":
        try:
            parsed = json.loads(str(text[()]))
        except (ValueError, RecursionError):
            pass
    if not isinstance(parsed, dict):
        raise DemonstrationError(f"`{path}` must hold `metadata` as text: a JSON object.")
    return parsed
