"""Values to and from the bytes of a `.big` file, whatever it holds: no code, nothing unchecked."""

from bigtrain.storage.container import VERSION, check_size, seal, unseal
from bigtrain.storage.fields import DTYPES, INTEGERS, Fields, refusing, write_array, write_names
from bigtrain.storage.limits import MAX_LAYERS, MAX_NAME, MAX_OBSERVATION, MAX_RANK, MAX_WIDTH

__all__ = [
    "DTYPES",
    "INTEGERS",
    "MAX_LAYERS",
    "MAX_NAME",
    "MAX_OBSERVATION",
    "MAX_RANK",
    "MAX_WIDTH",
    "VERSION",
    "Fields",
    "check_size",
    "refusing",
    "seal",
    "unseal",
    "write_array",
    "write_names",
]
