"""The exceptions of `bigtrain`, one tree.

BigTrainError
├── CMDPError             a problem that is stated wrongly
├── DemonstrationError    demonstrations, or a file of them, that cannot be used
├── ConfigError           a setting outside what it may be
├── CheckpointError       a checkpoint, or a file beside it, that cannot be gone on from
├── PlanningError         an exact answer that cannot be computed as asked
└── UnknownDynamicsError  a transition probability was asked of a simulator that has none

Every message is a sentence: what must hold, what came, and where it helps, what to do.
"""


class BigTrainError(Exception):
    """Base of everything that `bigtrain` raises on purpose."""


class CMDPError(BigTrainError, ValueError):
    """A contextual MDP, or a part of one, is stated wrongly."""


class DemonstrationError(BigTrainError, ValueError):
    """Demonstrations, or a file of them, cannot be used."""


class ConfigError(BigTrainError, ValueError):
    """A setting is outside what it may be."""


class CheckpointError(BigTrainError, ValueError):
    """A checkpoint, or a file beside it, cannot be gone on from."""


class PlanningError(BigTrainError, RuntimeError):
    """An exact answer cannot be computed as asked."""


class UnknownDynamicsError(BigTrainError, TypeError):
    """A transition probability was asked of a simulator that does not know it."""
