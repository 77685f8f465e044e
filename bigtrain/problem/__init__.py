"""What a problem is: spaces, simulators to learn in, and what happened in them."""

from bigtrain.problem import spaces
from bigtrain.problem.cmdp import CMDP
from bigtrain.problem.host import Environment, HostSimulator
from bigtrain.problem.simulator import (
    ObservationEncoder,
    Simulator,
    Where,
    observe_all,
    row_like,
)
from bigtrain.problem.spaces import SUM_TOLERANCE, ActionSpace, Contexts, Discrete
from bigtrain.problem.task import SimulatedTask
from bigtrain.problem.trajectories import (
    NO_ACTION,
    Actor,
    MixedActor,
    State,
    Trajectories,
    UniformActor,
    draw_index,
    draw_mixes,
    explore,
    flatten,
)

__all__ = [
    "CMDP",
    "NO_ACTION",
    "SUM_TOLERANCE",
    "ActionSpace",
    "Actor",
    "Contexts",
    "Discrete",
    "Environment",
    "HostSimulator",
    "MixedActor",
    "ObservationEncoder",
    "SimulatedTask",
    "Simulator",
    "State",
    "Trajectories",
    "UniformActor",
    "Where",
    "draw_index",
    "draw_mixes",
    "explore",
    "flatten",
    "observe_all",
    "row_like",
    "spaces",
]
