"""Whether a problem is finite, for those outside who have to ask."""

from bigtrain.finite.cmdp import TabularCMDP
from bigtrain.problem import Simulator


def as_finite(problem: Simulator) -> TabularCMDP | None:
    """The same problem, known to be finite; None where it is not."""
    return problem if isinstance(problem, TabularCMDP) else None
