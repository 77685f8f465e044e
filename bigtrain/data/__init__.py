"""Demonstrations of an expert who saw the hidden context: made, checked, saved, read.

A `Trajectory` is one expert episode; `Demonstrations` is a sequence of them, stored as a few flat
arrays. `docs/demonstrations.md` describes both and the file format.
"""

from bigtrain.data.demonstrations import Demonstrations, Padded
from bigtrain.data.trajectory import Trajectory

__all__ = ["Demonstrations", "Padded", "Trajectory"]
