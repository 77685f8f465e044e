"""Bundles as files: written whole or not at all."""

import os
from pathlib import Path

from bigtrain.atomic import atomic_write
from bigtrain.bundle.content import dump_bundle, parse_bundle
from bigtrain.bundle.model import Bundle
from bigtrain.errors import BundleError, BundleWriteError
from bigtrain.result import FitResult
from bigtrain.storage import check_size


def save_bundle(result: FitResult, path: str | os.PathLike) -> None:
    """Writes the bundle of a result to `path`. On any failure what was there stays as it was."""
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise BundleWriteError(
            f"A bundle must be written into a directory that exists, and `{target.parent}` is "
            "none. Create it first."
        )
    data = dump_bundle(result)
    with atomic_write(target) as file:
        file.write(data)


def load_bundle(path: str | os.PathLike) -> Bundle:
    """Reads a bundle. Nothing in the file is run, and any flaw of it is a `BundleError`."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            check_size(size)
            return parse_bundle(file.read(size))
        except BundleError as error:
            raise type(error)(f"`{os.fspath(path)}` cannot be loaded. {error}") from error
