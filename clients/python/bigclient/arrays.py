"""Arrays of the wire contract ↔ numpy."""

import numpy as np

from bigproto.v1 import policy_pb2

# Little-endian, as the contract has it, on every machine.
DTYPES: dict[policy_pb2.Array.DType, np.dtype] = {
    policy_pb2.Array.DTYPE_BOOL: np.dtype(np.bool_),
    policy_pb2.Array.DTYPE_UINT8: np.dtype(np.uint8),
    policy_pb2.Array.DTYPE_INT32: np.dtype("<i4"),
    policy_pb2.Array.DTYPE_INT64: np.dtype("<i8"),
    policy_pb2.Array.DTYPE_FLOAT32: np.dtype("<f4"),
    policy_pb2.Array.DTYPE_FLOAT64: np.dtype("<f8"),
}
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


def encode(array: np.ndarray) -> policy_pb2.Array:
    """The message for an array of any shape whose dtype is one of `DTYPES`."""
    return policy_pb2.Array(dtype=NUMBERS[array.dtype], shape=array.shape, data=array.tobytes())


def decode(message: policy_pb2.Array) -> np.ndarray:
    """The array in a message, of its shape, as a copy that may be written to."""
    flat = np.frombuffer(message.data, DTYPES[message.dtype])
    return flat.reshape(tuple(message.shape)).copy()
