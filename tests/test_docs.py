"""The documents' code runs as printed, and prints what they say it prints; their names are in the
sources; the demo serves."""

import contextlib
import dataclasses
import importlib
import inspect
import io
import re
import runpy
import shlex
import socket
from pathlib import Path

import pytest
from rich.console import Console
from serve.launch import QUICK, TIGER, serving

import bigserve.cli
import bigtrain
import bigtrain.cli

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [ROOT / "CONTRIBUTING.md", *DOCUMENTS, *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
SOURCES = ("bigtrain", "bigserve", "proto", "clients", "tests", "benchmarks", "examples")
OF_OTHERS = (
    "AutoresetMode NEXT_STEP SAME_STEP T_i TimeoutStopSec deps download_dataset he_normal "
    "linear_schedule vX wheel_dir"
)
"""Names in our documents that nothing of ours uses; standing here they are words of a source."""

DEMO = ROOT / "examples" / "demo.py"
DEFAULT_ADDRESS = "localhost:8500"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
IDENTIFIER = re.compile(r"\b_*[a-zA-Z]+(?:_\w+|(?<=[a-z])[A-Z]\w*)")  # snake_case or CamelCase
PATH = re.compile(r"(?:docs|bigtrain|bigserve|proto|clients|tests|benchmarks|examples)/[\w./-]*")
CODE = {".py", ".proto", ".pyi"}


def blocks(document: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a document: language and text."""
    return BLOCK.findall(document.read_text(encoding="utf-8"))


def commands(document: Path) -> list[list[str]]:
    """The words of the commands of ours in a document's shell blocks."""
    scripts = [text.replace("\\\n", "") for language, text in blocks(document) if language == "sh"]
    lines = [shlex.split(line, comments=True) for text in scripts for line in text.splitlines()]
    return [words for words in lines if words and words[0] in ("bigserve", "bigtrain")]


@pytest.mark.parametrize(
    "document",
    [d for d in DOCUMENTS if any(language == "python" for language, _ in blocks(d))],
    ids=lambda document: document.name,
)
def test_code_runs_and_prints_what_the_document_says(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    names: dict = {}
    printed = address = None
    with contextlib.ExitStack() as servers:
        for language, text in blocks(document):
            if language == "python":
                if DEFAULT_ADDRESS in text and address is None:
                    assert ["bigserve", "tiger.big"] in commands(document)
                    address = servers.enter_context(serving(Path("tiger.big"), **QUICK)).address
                output = io.StringIO()
                with contextlib.redirect_stdout(output):
                    code = text.replace(DEFAULT_ADDRESS, address or DEFAULT_ADDRESS)
                    exec(compile(code, document.name, "exec"), names)
                printed = output.getvalue()
            elif language == "" and printed:
                assert text == printed
                printed = None


@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if commands(d)], ids=lambda document: document.name
)
def test_commands_have_flags_that_are_there(document):
    for program, *words in commands(document):
        if program == "bigserve":
            assert bigserve.cli.parse_models(bigserve.cli.parse(words).files)
        else:
            bigtrain.cli.parse(words)


def test_a_problem_of_ones_own_takes_under_thirty_lines():
    _, code = next(b for b in blocks(ROOT / "docs" / "your-own-problem.md") if b[0] == "python")
    assert sum(bool(line.strip()) for line in code.splitlines()) < 30


@pytest.fixture(scope="module")
def words() -> set[str]:
    """All words of our sources, and of the files that say what there is to run, in lower case."""
    files = [f for folder in SOURCES for f in (ROOT / folder).rglob("*") if f.suffix in CODE]
    texts = [file.stem for file in files] + [
        file.read_text(encoding="utf-8")
        for file in (*files, *(ROOT / name for name in ("Makefile", "pyproject.toml")))
    ]
    found = {word.lower() for text in texts for word in re.findall(r"\w+|--[\w-]+", text)}
    return {word.removeprefix("--").replace("-", "_") for word in found}


@pytest.mark.parametrize("document", PAGES, ids=lambda document: document.name)
def test_names_in_the_text_are_in_the_sources(document, words):
    """Identifiers, flags and paths that are set as code outside of blocks."""
    spans = read_spans(document)
    flags = {flag for span in spans for flag in re.findall(r"--(?:no-)?([\w.-]+)", span)}
    names = {name for span in spans if "--" not in span for name in IDENTIFIER.findall(span)}
    names |= {part for flag in flags for part in flag.replace("-", "_").split(".")}
    plain = {re.sub("^bigserve_|_total$", "", name.lower()) for name in names}  # of metrics
    assert not {name for name in plain if not {name, f"bigserve_{name}"} & words}
    paths = {span.rstrip("/") for span in spans if PATH.fullmatch(span)}
    assert not {path for path in paths if not (ROOT / path).exists()}


@pytest.mark.parametrize("document", PAGES, ids=lambda document: document.name)
def test_dotted_names_of_ours_are_there(document):
    """From a package, or from what `bigtrain` has of the kind `bayes_rl.learn_policy`."""
    for span in read_spans(document):
        dotted = re.sub(r"[^\w.].*", "", span)
        head, dot, rest = dotted.partition(".")
        if not dot or rest == "py":
            continue
        if head in ("bigtrain", "bigserve", "bigclient"):
            assert find(dotted) is not None, span
        elif head in bigtrain.__all__ and inspect.ismodule(getattr(bigtrain, head)):
            assert find(f"bigtrain.{dotted}") is not None, span


@pytest.mark.parametrize(
    ("document", "config"),
    [("learning.md", bigtrain.InferenceConfig), ("policy.md", bigtrain.BayesRLConfig)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_settings_in_tables_are_there(document, config):
    """Each row names settings of one place."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    table = text.partition("| setting |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        first, *others = re.findall(r"`([\w.]+)`", line.split("|")[1])
        *place, _ = first.split(".")
        holder = config()
        for part in place:
            holder = getattr(holder, part)
        there = {field.name for field in dataclasses.fields(holder)}
        assert {first.split(".")[-1], *others} <= there


def test_folders_import_what_is_above_them_in_the_table():
    """But for `save` of a result, which the table names."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| `bigtrain/` | |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines()]
    level = {name: number for number, row in enumerate(rows) for name in row}
    beside = {"errors", "arrays", "devices", "atomic", "provenance"}
    package = ROOT / "bigtrain"
    inside = {
        path.stem for path in package.iterdir() if not path.name.startswith(("_", "py.typed"))
    }
    assert set(level) | beside == inside
    wrong = set()
    for file in package.rglob("*.py"):
        own = file.relative_to(package).parts[0].removesuffix(".py")
        found = re.findall(
            r"^ *from bigtrain(?:\.(\w+)[\w.]*)? import (.+)", file.read_text(), re.M
        )
        names = {name for head, tail in found for name in ([head] if head else tail.split(", "))}
        wrong |= {(own, name) for name in names if level.get(name, -1) > level.get(own, 99)}
    assert wrong == {("result", "bundle")}


def read_spans(document: Path) -> list[str]:
    """What a document sets as code within its text."""
    return SPAN.findall(BLOCK.sub("", document.read_text(encoding="utf-8")))


def find(dotted: str) -> object:
    """What a dotted name stands for, or None."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part, None)
        return found
    return None


@pytest.mark.parametrize("document", PAGES, ids=lambda document: document.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


def test_the_readme_shows_what_the_demo_computes():
    """The exact columns of the README's table, against the exact answers of the design."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [
        [c.strip() for c in line.split("│")[1:-1]] for line in readme.splitlines() if "│" in line
    ]
    exact = {row[0]: (row[2], row[4]) for row in rows if len(row) == 6}
    assert exact["a copy of the expert"] == ("0.5000", "0.00")
    assert exact["BIG, k around 0.5"] == ("0.9698", "2.68")
    assert exact["BIG, k around 0.9"] == ("0.9945", "4.24")
    assert exact["BIG, k around 0.98"] == ("0.9990", "5.70")
    ways = {row[0]: row[1:] for row in rows if len(row) == 5}
    assert ways["learned"] == ways["exact"] == ["0.9698", "2.68", "3.99", "0.0000"]
    assert_near_exact(*(map(float, cell.split(" ± ")) for cell in ways["served"][:3]))


def assert_near_exact(*estimates):
    """Success, listens and return of 1,000 episodes: within four standard errors of the exact."""
    wants, errors = (0.9698, 2.68, 3.99), (0.0054, 0.043, 0.6)
    for (mean, stderr), want, error in zip(estimates, wants, errors, strict=True):
        assert abs(mean - want) < 4 * error
        assert 0.5 < stderr / error < 2


@pytest.fixture(scope="module")
def demo():
    return runpy.run_path(str(DEMO))


def test_the_demo_serves_what_is_best_and_ends_its_server_whatever_happens(demo):
    with (
        pytest.raises(ArithmeticError, match="a failure"),
        demo["serving"](Console(quiet=True), TIGER) as address,
    ):
        assert_near_exact(*demo["play"](address))
        raise ArithmeticError("a failure")
    host, port = address.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_the_demo_says_why_its_server_does_not_start(demo, tmp_path):
    with (
        pytest.raises(RuntimeError, match="there is none"),
        demo["serving"](Console(quiet=True), tmp_path / "missing.big"),
    ):
        pass
