"""The exceptions of `bigtrain`, one tree.

BigTrainError
├── CMDPError             a problem that is stated wrongly
├── SimulatorError        a simulator that is stated wrongly, or does what it may not
├── DemonstrationError    demonstrations, or a file of them, that cannot be used
├── ConfigError           a setting outside what it may be
├── CheckpointError       a checkpoint, or a file beside it, that cannot be gone on from
├── BundleError           a bundle that cannot be read or written
│   ├── NotABundleError       a file of some other kind
│   ├── BundleVersionError    a version of the format that is not known here
│   ├── BundleTruncatedError  a file that ends too early
│   ├── BundleDigestError     a file that was changed after it was written
│   ├── BundleLimitError      something larger, longer or deeper than a bundle may hold
│   ├── BundleStructureError  a field that is missing, or of the wrong type
│   ├── BundleShapeError      arrays whose shapes or dtypes disagree
│   ├── BundleValueError      a value that cannot be: NaN, no probability, no such choice
│   └── BundleWriteError      a result that no bundle can hold, or nowhere to write it
├── PlanningError         an exact answer that cannot be computed as asked
└── UnknownDynamicsError  a transition probability was asked of a simulator that has none

Every message is a sentence: what must hold, what came, and where it helps, what to do.
"""


class BigTrainError(Exception):
    """Base of everything that `bigtrain` raises on purpose."""


class CMDPError(BigTrainError, ValueError):
    """A contextual MDP, or a part of one, is stated wrongly."""


class SimulatorError(BigTrainError, ValueError):
    """A simulator is stated wrongly, or shows what it said it would not."""


class DemonstrationError(BigTrainError, ValueError):
    """Demonstrations, or a file of them, cannot be used."""


class ConfigError(BigTrainError, ValueError):
    """A setting is outside what it may be."""


class CheckpointError(BigTrainError, ValueError):
    """A checkpoint, or a file beside it, cannot be gone on from."""


class BundleError(BigTrainError, ValueError):
    """A bundle cannot be read or written."""


class NotABundleError(BundleError):
    """The file is of some other kind."""


class BundleVersionError(BundleError):
    """The bundle is in a version of the format that is not known here."""


class BundleTruncatedError(BundleError):
    """The file ends too early."""


class BundleDigestError(BundleError):
    """The file was changed after it was written."""


class BundleLimitError(BundleError):
    """Something is larger, longer or deeper than a bundle may hold."""


class BundleStructureError(BundleError):
    """A field is missing, or of the wrong type."""


class BundleShapeError(BundleError):
    """Shapes or dtypes of arrays disagree."""


class BundleValueError(BundleError):
    """A value cannot be: NaN, no probability, no such choice."""


class BundleWriteError(BundleError):
    """No bundle can hold this result, or there is nowhere to write it."""


class PlanningError(BigTrainError, RuntimeError):
    """An exact answer cannot be computed as asked."""


class UnknownDynamicsError(BigTrainError, TypeError):
    """A transition probability was asked of a simulator that does not know it."""
