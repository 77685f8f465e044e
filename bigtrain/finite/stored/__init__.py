"""All of a bundle that is finite: a problem, an exploration prior, policies that are tables."""

from bigtrain.finite.kind import as_finite
from bigtrain.finite.stored.policies import (
    POLICY_KINDS,
    StoredPolicy,
    describe_policy,
    is_exact,
    read_inference,
    read_policy,
    summarise_policy,
    write_policy,
)
from bigtrain.finite.stored.problems import (
    Names,
    StoredProblem,
    note_exploration,
    read_exploration,
    read_problem,
    require_problem,
    write_exploration,
    write_problem,
)

__all__ = [
    "POLICY_KINDS",
    "Names",
    "StoredPolicy",
    "StoredProblem",
    "as_finite",
    "describe_policy",
    "is_exact",
    "note_exploration",
    "read_exploration",
    "read_inference",
    "read_policy",
    "read_problem",
    "require_problem",
    "summarise_policy",
    "write_exploration",
    "write_policy",
    "write_problem",
]
