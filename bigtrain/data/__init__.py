"""Demonstrations: expert episodes in memory and on disk; and replay of what was collected."""

from bigtrain.data.demonstrations import Demonstrations
from bigtrain.data.trajectory import Trajectory

__all__ = ["Demonstrations", "Trajectory"]
