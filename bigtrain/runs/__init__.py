"""Long work made watchable and safe to kill: progress, metrics, checkpoints, run directories.

A learner announces `Event`s to its callbacks and hands its state to a `Run`, which resumes it.
"""

from bigtrain.runs.checkpoints import Checkpoints
from bigtrain.runs.directory import Run
from bigtrain.runs.events import Callback, Event, Metric, metric_values
from bigtrain.runs.metrics import JsonLines, TensorBoard, read_metrics
from bigtrain.runs.progress import Progress

__all__ = [
    "Callback",
    "Checkpoints",
    "Event",
    "JsonLines",
    "Metric",
    "Progress",
    "Run",
    "TensorBoard",
    "metric_values",
    "read_metrics",
]
