"""How a result came about and how good it is, to and from the fields of a bundle."""

import math
from typing import Any, NamedTuple, cast

from bigtrain.errors import BundleValueError
from bigtrain.evaluate import Estimate, Evaluation, Regret
from bigtrain.provenance import Provenance
from bigtrain.result import FitResult, Measured
from bigtrain.storage import INTEGERS, MAX_NAME, Fields


class Certificate(NamedTuple):
    """Bounds on the Bayes-optimal value for the predictive reward, and where the policy stands.

    `value` is a lower bound on the policy's own value; None where it was not measured.
    """

    lower: float
    upper: float
    closed: bool
    num_hyperstates: int
    value: float | None


def certify(result: FitResult) -> Certificate | None:
    """The certificate of a result, with what is known of its policy's value."""
    solution, measured = result.certificate, result.measured
    if solution is None:
        return None
    value = solution.lower if result.policy is solution.policy else None
    regret = None if measured is None else measured.regret
    if regret is not None and regret.optimal == solution.upper:  # by the same reward
        value = regret.value
    return Certificate(
        solution.lower, solution.upper, solution.closed, solution.num_hyperstates, value
    )


def write_certificate(certificate: Certificate) -> dict[str, Any]:
    """The bounds."""
    return {
        "lower": float(certificate.lower),
        "upper": float(certificate.upper),
        "closed": bool(certificate.closed),
        "num_hyperstates": int(certificate.num_hyperstates),
        "value": _optional_float(certificate.value),
    }


def read_certificate(fields: Fields) -> Certificate:
    """The bounds, in their order."""
    certificate = Certificate(
        fields.number("lower"),
        fields.number("upper"),
        fields.flag("closed"),
        fields.integer("num_hyperstates", 0, INTEGERS[1]),
        fields.optional("value", fields.number),
    )
    if certificate.lower > certificate.upper:
        raise BundleValueError(
            f"`{fields.where}` must have a lower bound below its upper one, got "
            f"{certificate.lower:g} and {certificate.upper:g}."
        )
    return certificate


def write_measured(measured: Measured) -> dict[str, Any]:
    """What was measured; what the problem does not define is nil."""
    regret = measured.regret
    return {
        "evaluation": {
            name: None if estimate is None else _write_estimate(estimate)
            for name, estimate in measured.evaluation._asdict().items()
        },
        "episodes": int(measured.episodes),
        "horizon": int(measured.horizon),
        "regret": None
        if regret is None
        else {name: _optional_float(value) for name, value in regret._asdict().items()},
    }


def read_measured(fields: Fields) -> Measured:
    """What was measured."""
    evaluation = fields.fields("evaluation")

    def estimate(name: str) -> Estimate:
        return _read_estimate(evaluation.fields(name))

    return Measured(
        Evaluation(
            estimate("total_return"),
            estimate("discounted_return"),
            *(evaluation.optional(n, estimate) for n in ("success", "unfinished", "exploring")),
        ),
        fields.integer("episodes", 0, INTEGERS[1]),
        fields.integer("horizon", 0, INTEGERS[1]),
        fields.optional("regret", lambda name: _read_regret(fields.fields(name))),
    )


def write_provenance(provenance: Provenance) -> dict[str, Any]:
    """How the result came about."""
    return {
        "method": provenance.method,
        "seed": int(provenance.seed),
        "num_demonstrations": int(provenance.num_demonstrations),
        "demonstrations_digest": provenance.demonstrations_digest,
        "problem_digest": provenance.problem_digest,
        "settings": dict(provenance.settings),
        "versions": dict(provenance.versions),
    }


def read_provenance(fields: Fields) -> Provenance:
    """How the result came about."""
    return Provenance(
        cast(Any, fields.choice("method", ("fit", "solve"))),
        fields.integer("seed", *INTEGERS),
        fields.integer("num_demonstrations", 0, INTEGERS[1]),
        fields.text("demonstrations_digest", MAX_NAME),
        fields.text("problem_digest", MAX_NAME),
        fields.texts("settings"),
        fields.texts("versions"),
    )


def _write_estimate(estimate: Estimate) -> dict[str, Any]:
    # A single episode has no standard error, which is NaN in memory and nil in a file.
    stderr = None if math.isnan(estimate.stderr) else float(estimate.stderr)
    return {"mean": float(estimate.mean), "stderr": stderr}


def _read_estimate(fields: Fields) -> Estimate:
    stderr = fields.optional("stderr", lambda name: fields.number(name, low=0.0))
    return Estimate(fields.number("mean"), math.nan if stderr is None else stderr)


def _read_regret(fields: Fields) -> Regret:
    return Regret(
        fields.number("value"),
        fields.number("optimal"),
        fields.optional("never_exploring", fields.number),
    )


def _optional_float(value: float | None) -> float | None:
    return None if value is None else float(value)
