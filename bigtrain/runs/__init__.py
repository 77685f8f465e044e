"""Long work made watchable and safe to kill: progress, metrics, checkpoints, run directories.

A learner announces `Event`s to its callbacks and hands its state to a `Run`, which resumes it.
"""

from bigtrain.runs.checkpoints import Checkpoints
from bigtrain.runs.directory import Run, lock
from bigtrain.runs.events import Callback, Event, Metric, metric_values
from bigtrain.runs.metrics import JsonLines, TensorBoard, read_metrics
from bigtrain.runs.progress import Progress
from bigtrain.runs.settings import flatten_settings, keep_settings

__all__ = [
    "Callback",
    "Checkpoints",
    "Event",
    "JsonLines",
    "Metric",
    "Progress",
    "Run",
    "TensorBoard",
    "flatten_settings",
    "keep_settings",
    "lock",
    "metric_values",
    "read_metrics",
]
