"""The documents' code runs as printed, and prints what they say it prints."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(document: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a document: language and text."""
    return BLOCK.findall(document.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "document",
    [d for d in DOCUMENTS if any(language == "python" for language, _ in blocks(d))],
    ids=lambda document: document.name,
)
def test_code_runs_and_prints_what_the_document_says(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    names: dict = {}
    printed = None
    for language, text in blocks(document):
        if language == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(text, document.name, "exec"), names)
            printed = output.getvalue()
        elif language == "" and printed:
            assert text == printed
            printed = None


def test_a_problem_of_ones_own_takes_under_thirty_lines():
    _, code = next(b for b in blocks(ROOT / "docs" / "your-own-problem.md") if b[0] == "python")
    assert sum(bool(line.strip()) for line in code.splitlines()) < 30


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


def test_the_readme_shows_what_the_demo_computes():
    """The exact columns of the README's table, against the exact answers of the design."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [
        [c.strip() for c in line.split("│")[1:-1]] for line in readme.splitlines() if "│" in line
    ]
    exact = {row[0]: (row[2], row[4]) for row in rows}
    assert exact["a copy of the expert"] == ("0.5000", "0.00")
    assert exact["BIG, k around 0.5"] == ("0.9698", "2.68")
    assert exact["BIG, k around 0.9"] == ("0.9945", "4.24")
    assert exact["BIG, k around 0.98"] == ("0.9990", "5.70")
    learned = {row[0]: row[1:] for row in rows}
    want = ["0.9698", "2.68", "3.99", "0.0000"]
    assert learned["BIG, learned, k around 0.5"] == learned["BIG, exact, k around 0.5"] == want
