"""What a problem is: the spaces, and simulators to learn in."""

from bigtrain.problem.cmdp import CMDP, NO_ACTION, State

__all__ = ["CMDP", "NO_ACTION", "State"]
