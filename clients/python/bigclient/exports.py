"""Exported episodes, as their owner carries them from one server to another."""

from google.protobuf.message import DecodeError

from bigproto.v1 import policy_pb2

from .errors import SealBroken


class SealedEpisode:
    """An episode's whole state, which only a server with the same key takes back.

    To its owner it is bytes: `to_bytes` writes them, `from_bytes` reads them. It is sealed, not
    encrypted; what it holds is the belief, not secrets of the server.
    """

    def __init__(self, message: policy_pb2.SealedEpisode):
        self._message = message
        try:
            self._state = policy_pb2.EpisodeState.FromString(message.state)
        except DecodeError:
            raise SealBroken(_NO_EXPORT) from None
        if not self._state.episode_id:
            raise SealBroken(_NO_EXPORT)

    def to_bytes(self) -> bytes:
        """The export as bytes, for a file or another machine."""
        return self._message.SerializeToString()

    @classmethod
    def from_bytes(cls, data: bytes) -> "SealedEpisode":
        """The export in bytes that `to_bytes` wrote."""
        try:
            return cls(policy_pb2.SealedEpisode.FromString(data))
        except DecodeError:
            raise SealBroken(_NO_EXPORT) from None

    @property
    def episode_id(self) -> str:
        """The id of the episode, which it keeps."""
        return self._state.episode_id

    @property
    def step(self) -> int:
        """The step that it is to make next."""
        return self._state.next_step

    @property
    def model_and_version(self) -> tuple[str, str]:
        """The name and version of the model that it is on."""
        return self._state.model, self._state.version

    @property
    def message(self) -> policy_pb2.SealedEpisode:
        """The export as it goes over the wire."""
        return self._message

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SealedEpisode) and self._message == other._message

    __hash__ = None  # type: ignore[assignment]  # a message is mutable, and cannot be hashed

    def __repr__(self) -> str:
        return f"SealedEpisode(episode_id={self.episode_id!r}, step={self.step})"


_NO_EXPORT = "An export must be what `episode.export().to_bytes()` gave, whole and unaltered."
