"""What a problem is: spaces, simulators to learn in, and what happened in them."""

from bigtrain.problem.cmdp import CMDP
from bigtrain.problem.host import Environment, HostSimulator
from bigtrain.problem.simulator import ObservationEncoder, Simulator, Where
from bigtrain.problem.spaces import ActionSpace, Contexts, Discrete
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
    "NO_ACTION",
    "ActionSpace",
    "Actor",
    "CMDP",
    "Contexts",
    "Discrete",
    "Environment",
    "HostSimulator",
    "ObservationEncoder",
    "Simulator",
    "State",
    "Trajectories",
    "UniformActor",
    "Where",
    "draw_index",
    "explore",
    "flatten",
]
