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
from bigtrain.problem.task import Task
from bigtrain.problem.trajectories import (
    NO_ACTION,
    Actor,
    State,
    Trajectories,
    UniformActor,
    draw_index,
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
    "ObservationEncoder",
    "Simulator",
    "State",
    "Task",
    "Trajectories",
    "UniformActor",
    "Where",
    "draw_index",
    "explore",
    "flatten",
    "observe_all",
    "row_like",
    "spaces",
]
