"""How the parts may know of each other, and what their faces owe to those who use them.

Each guard is a function of sources, and is shown to find what is made up to offend it. That
packages import one way, `bigclient → bigproto ← bigserve → bigtrain`, is in `test_project`.
"""

from pathlib import Path

import architecture
import architecture_faces as faces
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "bigtrain": ROOT / "bigtrain",
    "bigserve": ROOT / "bigserve",
    "bigproto": ROOT / "proto" / "bigproto",
    "bigclient": ROOT / "clients" / "python" / "bigclient",
}
EVERYTHING = architecture.read(PACKAGES)
BIGTRAIN = {name: m for name, m in EVERYTHING.items() if name.partition(".")[0] == "bigtrain"}

# From the bottom to the top: each part knows those before it, and none after it.
ORDER = (
    "bigtrain.errors",  # what everybody needs
    "bigtrain.arrays",
    "bigtrain.atomic",
    "bigtrain.devices",
    "bigtrain.problem",  # what there is to learn in and from: knows of no learner
    "bigtrain.data",
    "bigtrain.storage",  # what is kept, and how work is watched
    "bigtrain.runs",
    "bigtrain.provenance",
    "bigtrain.learning",  # what learners share
    "bigtrain.belief",
    "bigtrain.policy",
    "bigtrain.reward",  # the three phases
    "bigtrain.exploration",
    "bigtrain.bayes_rl",
    "bigtrain.evaluate",
    "bigtrain.phases",  # the phases driven, for any kind of problem
    "bigtrain.result",
    "bigtrain.finite",  # the kind that is tables: takes its places at the seam
    "bigtrain.bundle",
    "bigtrain.envs",
    "bigtrain.baselines",
    "bigtrain.fit",
    "bigtrain.figures",
    "bigtrain.experiments",
    "bigtrain.cli",
    "bigtrain",  # the face of all: for users, so that nothing inside asks it
)

# `FitResult.save` is `save_bundle` where people look for it. It imports that when it is called:
# what writes a result has to know what one is, and a result nothing of how it is written.
UPWARD = {("bigtrain.result", "bigtrain.bundle")}

# Who may name what is finite, and by which names; None is any.
DOORS = {
    "bigtrain": None,  # shows it to users
    "bigtrain.experiments": None,  # hold what is learned against the exact answer
    "bigtrain.envs": {"TabularCMDP", "envs"},  # makes finite problems by name
    "bigtrain.baselines": {"average_contexts", "clone", "solve_averaged", "solve_without_prior"},
    "bigtrain.bundle": {"stored"},  # files hold finite problems: this is all of it that does
    "bigtrain.fit": {"BayesConfig"},  # settings of a part, among those of all
    "bigtrain.cli": {  # `--method exact`, `--exact`, and the expert of a problem that has a task
        "SolveConfig",
        "anywhere",
        "as_finite",
        "demonstrate",
        "evaluate_exactly",
        "solve",
    },
}


def test_imports_inside_bigtrain_point_down():
    graph = architecture.graph(BIGTRAIN, but=UPWARD)
    assert architecture.upward(graph, ORDER) == []
    assert {architecture.part_of(name) for name in graph} == set(ORDER)
    assert len(set(ORDER)) == len(ORDER)


def test_there_are_no_cycles():
    assert architecture.cycles(architecture.graph(EVERYTHING, but=UPWARD)) == []


def test_exceptions_are_needed():
    graph = architecture.graph(BIGTRAIN)
    assert architecture.upward(graph, ORDER) == [" → ".join(edge) for edge in UPWARD]
    for door, names in DOORS.items():
        for name in names or ():
            fewer = DOORS | {door: (names or set()) - {name}}
            assert faces.naming(BIGTRAIN, "bigtrain.finite", "TabularCMDP", fewer)


def test_only_doors_name_what_is_finite():
    assert faces.naming(EVERYTHING, "bigtrain.finite", "TabularCMDP", DOORS) == []


@pytest.mark.parametrize("top", ["bigtrain", "bigserve"])
def test_sisters_are_used_by_their_faces(top):
    users = {name: m for name, m in EVERYTHING.items() if name.partition(".")[0] == top}
    assert faces.reaching_past(users, BIGTRAIN) == []


def test_users_need_public_names_only():
    users = architecture.read({"examples": ROOT / "examples"})
    users |= {"seam": architecture.read({"tests": ROOT / "tests"})["tests.test_seam"]}
    assert faces.reaching_past(users, BIGTRAIN) == []


def test_faces_show_what_they_import():
    assert faces.incomplete(EVERYTHING) == []


def test_public_names_are_explained():
    assert faces.undocumented(EVERYTHING) == []


def test_arrays_of_public_functions_have_axes():
    assert faces.shapeless(EVERYTHING) == []


# Each guard finds an offence


FACE = "from top.low.a import f\n__all__ = ['f']"
SMALL = {"top": "", "top.low": FACE, "top.low.a": "def f(): ...", "top.high": ""}


def offending(**changed: str) -> architecture.Sources:
    """Small sources in which some are otherwise; `low_a` is `top.low.a`."""
    return architecture.parse(
        SMALL | {f"top.{name.replace('_', '.')}": text for name, text in changed.items()}
    )


@pytest.mark.parametrize(
    "source",
    [
        "import top.high",
        "from top import high",
        "from top.high import g",
        "from ..high import g",
        "from .. import high",
        "def f():\n    from top.high import g",
        "if TYPE_CHECKING:\n    from top.high import g",
    ],
)
def test_an_import_that_points_up_is_found(source):
    graph = architecture.graph(offending(low_a=source))
    assert architecture.upward(graph, ("top.low", "top.high")) == [
        "top has no place in the order",
        "top.low.a → top.high",
    ]
    assert not architecture.upward(graph, ("top.high", "top.low", "top"))


@pytest.mark.parametrize(
    ("changed", "cycle"),
    [
        ({"low_a": "import top.high", "high": "import top.low.a"}, ["top.high", "top.low.a"]),
        ({"low_a": "from top.low import f"}, ["top.low", "top.low.a"]),
        ({"low_a": "from . import f"}, ["top.low", "top.low.a"]),
        (  # by the face, which is imported on the way to any module of its package
            {"low_a": "import top.high", "low_b": "", "high": "import top.low.b"},
            ["top.high", "top.low", "top.low.a"],
        ),
    ],
)
def test_a_cycle_is_found(changed, cycle):
    graph = architecture.graph(offending(**changed))
    (found,) = architecture.cycles(graph)
    assert set(found.split(" → ")) >= set(cycle)
    assert not architecture.cycles(architecture.graph(offending()))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("from top.low.a import f", "top.high: from top.low.a import f"),
        ("import top.low.a", "top.high: import top.low.a"),
        ("def g():\n    from .low.a import f", "top.high: from top.low.a import f"),
        ("from top.low import a", "top.high: from top.low import a, which it does not show"),
        ("from top.low import g", "top.high: from top.low import g, which it does not show"),
    ],
)
def test_reaching_past_a_face_is_found(source, told):
    sources = offending(high=source)
    assert faces.reaching_past(sources, sources) == [told]


def test_users_from_elsewhere_are_found():
    user = architecture.parse({"user": "from top.low.a import f"})
    assert faces.reaching_past(user, offending()) == ["user: from top.low.a import f"]


def test_a_face_may_be_used():
    sources = offending(high="from top.low import f\nfrom top import low")
    assert faces.reaching_past(sources, sources) == []


@pytest.mark.parametrize(
    "source",
    [
        "from top.low import f",
        "from top.low.a import f",
        "from top import low as f",
        "import top.low",
        "import top\ntop.f",
        "from somewhere import f\nisinstance(1, f)",
    ],
)
def test_naming_is_found(source):
    sources = offending(high=source)
    assert faces.naming(sources, "top.low", "f", {})
    assert not faces.naming(sources, "top.low", "f", {"top.high": None})


@pytest.mark.parametrize(
    ("face", "told"),
    [
        ("__all__ = ['f']", "top.low shows f, but has none"),
        ("from top.low.a import f\n__all__ = []", "top.low does not show f"),
        ("from top.low.a import f as g\n__all__ = ['f', 'g']", "top.low shows f, but has none"),
        ("def f(): ...\n__all__ = []", "top.low does not show f"),
    ],
)
def test_a_face_that_does_not_match_is_found(face, told):
    assert faces.incomplete(offending(low=face)) == [told]


@pytest.mark.parametrize("source", ["def f(): ...", "class f: ...", "f = 1", "f: int = 1"])
def test_a_name_without_a_word_is_found(source):
    assert faces.undocumented(offending(low_a=source)) == ["top.low.a.f"]


@pytest.mark.parametrize("source", ["def f():\n    'Says.'", "f = 1\n'Says.'"])
def test_a_name_with_a_word_is_none(source):
    assert faces.undocumented(offending(low_a=source)) == []


@pytest.mark.parametrize(
    "source",
    [
        "def f(x: np.ndarray): ...",
        "def f(x: 'np.ndarray'): ...",
        "def f(*x: Array): ...",
        "def f(x): ...",
        "def f() -> list[jax.Array | None]: ...",
        "class f:\n    def g(self, *, x: ArrayLike): ...",
        "class f:\n    def __init__(self, x: ArrayLike): ...",
    ],
)
def test_an_array_without_axes_is_found(source):
    (found,) = faces.shapeless(offending(low_a=source))
    assert found.startswith("top.low.a.f: ")


@pytest.mark.parametrize(
    "source",
    [
        "def f(x: Float[Array, ' state']): ...",
        "def f(x: np.ndarray):\n    'Of x [state].'",
        "class f:\n    x: Float[Array, ' state']\n    def __init__(self, x: ArrayLike): ...",
        "class b:\n    def g(self):\n        'Gives [state].'\n"
        "class f(b):\n    def g(self) -> Array: ...",
    ],
)
def test_an_array_with_axes_is_none(source):
    assert faces.shapeless(offending(low_a=source)) == []
