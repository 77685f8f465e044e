"""The paper's experiments and some beyond it, by name, each beside the exact answer."""

from bigtrain.errors import ConfigError
from bigtrain.experiments import (
    baselines,
    context_inference,
    exploration_prior,
    larger_mazes,
    maze,
    neighbours,
    robustness,
    temperature,
)
from bigtrain.experiments.experiment import Experiment, Preset
from bigtrain.experiments.report import compose
from bigtrain.experiments.study import carry_out

__all__ = ["Experiment", "Preset", "carry_out", "compose", "get", "names"]

_EXPERIMENTS = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        exploration_prior,
        context_inference,
        maze,
        temperature,
        baselines,
        neighbours,
        robustness,
        larger_mazes,
    )
}


def names() -> tuple[str, ...]:
    """The names that `get` knows, in the order in which all are run."""
    return tuple(_EXPERIMENTS)


def get(name: str) -> Experiment:
    """The experiment called `name`."""
    if name not in _EXPERIMENTS:
        raise ConfigError(f"There is no experiment {name!r}. There are: {', '.join(names())}.")
    return _EXPERIMENTS[name]
