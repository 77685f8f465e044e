"""The report: it tells all that was found, as it was found, and nothing in it leaves the file."""

import base64
import functools
import json
import os
import re
import shlex
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import tyro
from matplotlib.figure import Figure

from bigserve.cli import parse_models
from bigtrain import experiments
from bigtrain.cli.report import Report
from bigtrain.errors import BigTrainError, CheckpointError, ConfigError
from bigtrain.experiments import findings
from bigtrain.experiments.findings import Cell, Claim, Findings, Picture, Table
from bigtrain.experiments.report.gather import gather
from bigtrain.experiments.report.style import STYLE
from bigtrain.experiments.report.wording import is_numeric, tell_cell, tell_size, tell_time

KNOWN = experiments.names()[0]
compose = functools.partial(experiments.compose, order=experiments.names())
VOID = {"meta", "link", "img", "br"}
FETCHING = {"href", "src", "srcset", "data", "poster", "action", "formaction", "xlink:href"}


class Page(HTMLParser):
    """Elements as (tag, attributes, tags around it), texts as (tag, its attributes, text)."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], tuple[str, ...]]] = []
        self.texts: list[tuple[str, dict[str, str], str]] = []
        self._open: list[tuple[str, dict[str, str]]] = []
        self.feed(text)
        self.close()
        assert not self._open, "An element is not closed."

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        assert len(given) == len(attrs)
        around = tuple(f"{tag}.{given.get('class', '')}" for tag, given in self._open)
        self.elements.append((tag, given, around))
        if tag not in VOID:
            self._open.append((tag, given))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((*self._open[-1], data))

    def find(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes, _ in self.elements if name == tag]

    def read(self, tag: str) -> list[str]:
        return [text for within, _, text in self.texts if within == tag]

    @property
    def text(self) -> str:
        return " ".join(text for _, _, text in self.texts)


def leave(
    directory: Path,
    name: str = KNOWN,
    *,
    title: str = "What it does",
    claims: Sequence[Claim] = (Claim("It works.", "1 of 1", True),),
    rows: Sequence[Sequence[Cell]] = (("a", 0.5),),
    caption: str = "A line.",
    **about: Any,
) -> Path:
    """A directory as an experiment leaves it."""
    directory.mkdir(parents=True)
    (directory / "bundles").mkdir()
    figure = Figure()
    figure.subplots().plot([0, 1])
    found = Findings(
        "In plain words.",
        claims,
        [Table("Numbers", ("who", "how much"), rows, "A note.")],
        [Picture("line", caption, figure)],
    )
    row = {"experiment": name, "title": title, "preset": "fast", "seconds": 70.2}
    row |= {"settings": {"a.b": "0.5"}, "versions": {"jax": "0.10"}} | about
    findings.write(found, directory, row)
    return directory


def begin(directory: Path, settings: Any) -> Path:
    """A directory that an experiment, or the learning of one policy, has begun in."""
    (directory / "results").mkdir(parents=True)
    (directory / "settings.json").write_text(json.dumps({"settings": settings}))
    return directory


# What it tells


def test_it_tells_what_was_found(tmp_path: Path):
    text = Page(compose(leave(tmp_path / "one", caption="A & B"))).text
    for told in ("What it does", "In plain words.", "It works.", "1 of 1", "Numbers", "A note."):
        assert told in text
    for told in ("how much", "A & B", "1 min 10 s", "a.b", "jax 0.10", "1 setting"):
        assert told in text


def test_claims_are_counted_and_marked_in_words(tmp_path: Path):
    claims = [Claim("One.", "1", True), Claim("Two.", "2", False), Claim("Three.", "3", True)]
    page = Page(compose(leave(tmp_path / "one", claims=claims)))
    marks = [text.strip() for text in page.read("span")]
    # The first is that of the contents, where one claim that fails is enough for its mark.
    assert marks == ["✗", "2 of 3 hold", "✓", "holds", "✗", "does not hold", "✓", "holds"]
    assert page.read("strong") == ["2 of 3 claims hold"]


def test_an_experiment_without_claims_is_not_praised(tmp_path: Path):
    page = Page(compose(leave(tmp_path / "one", claims=())))
    assert not page.read("span")


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_pictures_are_in_the_page(tmp_path: Path, suffix: str):
    directory = leave(tmp_path / "one", caption="A line.")
    if suffix == ".png":
        (directory / "figures" / "line.svg").unlink()
    page = Page(compose(directory))
    (image,) = page.find("img")
    kind, _, data = image["src"].removeprefix("data:").partition(";base64,")
    assert kind == {".svg": "image/svg+xml", ".png": "image/png"}[suffix]
    assert base64.b64decode(data) == (directory / "figures" / f"line{suffix}").read_bytes()
    assert image["alt"] == "A line." and page.read("figcaption") == ["A line."]


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        (None, "–"),
        (0.9698, "0.9698"),
        (-100.0, "-100"),
        (0.0, "0"),
        (1.25e-7, "1.25e-07"),
        (123456.0, "123,456"),
        (1234567, "1,234,567"),
        (float("inf"), "∞"),
        (True, "yes"),
        ("0.5 ± 0.1", "0.5 ± 0.1"),
    ],
)
def test_cells(tmp_path: Path, cell: Cell, told: str):
    assert tell_cell(cell) == told
    assert told in Page(compose(leave(tmp_path / "one", rows=[("a", cell)]))).read("td")


@pytest.mark.parametrize(
    ("column", "numeric"),
    [
        ([0.5, None], True),
        (["0.97 ± 0.01", "-52.35", "< 10 ms", "2 of 2", "0.00%", "∞", "−3"], True),
        (["0.5", "never opens"], True),
        (["0.5", "never opens", "never listens"], False),
        (["k=-4", "no prior"], False),
        (["3-state", "5 × 5 maze"], False),
        ([None], False),
        ([], False),
    ],
)
def test_columns_of_numbers_are_told_from_words(column: list[Cell], numeric: bool):
    assert is_numeric(column) is numeric


def test_numbers_stand_at_the_right_with_their_heading(tmp_path: Path):
    page = Page(compose(leave(tmp_path / "one", rows=[("a", 1.5), ("b", None)])))
    kinds = {text: given.get("class") for _, given, text in page.texts}
    assert kinds["how much"] == kinds["1.5"] == kinds["–"] == "number"
    assert kinds["who"] is kinds["a"] is kinds["b"] is None


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.9, "60 s"), (60.0, "1 min 0 s"),
        (3599.7, "1 h 0 min"), (3660.0, "1 h 1 min"), (7199.0, "2 h 0 min"),
    ],
)  # fmt: skip
def test_times(seconds: float, told: str):
    assert tell_time(seconds) == told


def test_sizes():
    assert [tell_size(size) for size in (999, 1_500, 999_600)] == ["999 bytes", "2 kB", "1.0 MB"]


@pytest.mark.parametrize("name", ["k=-4.big", "no prior.big", "it's.big"])
def test_the_command_it_prints_serves_the_policy(tmp_path, monkeypatch, name):
    (leave(tmp_path / "all" / "one") / "bundles" / name).write_bytes(bytes(2_000))
    page = Page(compose(tmp_path / "all"))
    assert f"one/bundles/{name}" in page.read("code") and "2 kB" in page.read("span")
    (command,) = (code for code in page.read("code") if code.startswith("bigserve"))
    (path,) = parse_models(shlex.split(command)[1:]).values()
    monkeypatch.chdir(tmp_path / "all")
    assert path.is_file()


def test_versions_are_told_once_where_they_agree(tmp_path: Path):
    leave(tmp_path / "one", "a", title="A")
    leave(tmp_path / "two", "b", title="B")
    assert compose(tmp_path).count("jax 0.10") == 1
    leave(tmp_path / "three", "c", title="C", versions={"jax": "0.11"})
    text = Page(compose(tmp_path)).text
    assert "A; B: jax 0.10" in text and "C: jax 0.11" in text


# What it is made of


def test_experiments_come_in_their_order(tmp_path: Path):
    for name in ("zebra", "ant", "second", "first"):
        leave(tmp_path / f"in-{name}", name)
    gathered = gather(tmp_path, order=("first", "second"))
    assert [one.name for one in gathered.finished] == ["first", "second", "ant", "zebra"]


def test_the_known_come_first(tmp_path: Path):
    leave(tmp_path / "a", "aardvark", title="Unknown")
    leave(tmp_path / "z", KNOWN, title="Known")
    assert Page(compose(tmp_path)).read("h2")[:2] == ["Known", "Unknown"]


def test_unfinished_ones_are_listed(tmp_path: Path):
    leave(tmp_path / "one", title="Done")
    begun = begin(tmp_path / "two", {"experiment": "still-at-work"})
    (begun / "results" / "exact.json").write_text("{}")
    begin(tmp_path / "tiger.run", {"temperature": 0.01})  # of `bigtrain fit`, no experiment
    (begin(tmp_path / "broken", {}) / "settings.json").write_text("{")
    (tmp_path / "notes.txt").write_text("no directory")
    unfinished = gather(tmp_path, order=()).unfinished
    assert [(one.name, one.num_pieces) for one in unfinished] == [
        ("broken", 0),
        ("still-at-work", 1),
    ]
    assert "unfinished, 1 piece done" in Page(compose(tmp_path)).read("td")


def test_the_same_directories_make_the_same_page(tmp_path: Path):
    leave(tmp_path / "one", "a")
    leave(tmp_path / "two", "b")
    assert compose(tmp_path) == compose(tmp_path)


def damage(directory: Path, **changes: Any) -> None:
    path = directory / findings.FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"claims": [{"statement": "It works."}]}, "must be what an experiment wrote"),
        ({"claims": None}, "must be what an experiment wrote"),
        ({"seconds": "long"}, "must be what an experiment wrote"),
        ({"settings": []}, "must be what an experiment wrote"),
        ({"figures": [{"name": "gone", "caption": ""}]}, "must hold gone.svg or gone.png"),
        ({"figures": [{"name": "../../secret", "caption": ""}]}, "but has neither"),
    ],
)
def test_damaged_findings_are_told(tmp_path: Path, changes: dict[str, Any], says: str):
    directory = leave(tmp_path / "one")
    (tmp_path / "secret.svg").write_text("<svg/>")
    damage(directory, **changes)
    with pytest.raises(CheckpointError, match=says):
        compose(directory)


def test_what_is_no_experiment_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="must be made of a directory that exists"):
        compose(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="but has none"):
        compose(tmp_path)
    begin(tmp_path / "two", {"experiment": "at-work"})
    for directory in (tmp_path, tmp_path / "two"):
        with pytest.raises(ConfigError, match="only unfinished ones: at-work"):
            compose(directory)


# What it may do to its reader


def test_nothing_leaves_the_file(tmp_path: Path):
    for folder in ("one", "two", "three"):  # of one name, so that anchors could clash
        leave(tmp_path / folder)
    page = Page(compose(tmp_path))
    ids = [given["id"] for _, given, _ in page.elements if "id" in given]
    assert len(set(ids)) == len(ids)
    fetched = [(n, v) for _, given, _ in page.elements for n, v in given.items() if n in FETCHING]
    assert {name for name, _ in fetched} == {"href", "src"}
    for _, value in fetched:
        assert value.startswith("data:") or value.removeprefix("#") in ids, value
    assert sum(value.startswith("#") for _, value in fetched) == 3
    assert not re.search(r"url\(|@import|@font-face", STYLE + page.text)
    assert not any("style" in given for _, given, _ in page.elements)
    assert not {"script", "iframe", "object", "embed", "form"} & {e[0] for e in page.elements}


EVIL = '<script>alert(\'1\')</script>"><img src=x onerror="alert(2)">&amp;</style>'


def leave_everywhere(directory: Path, text: str) -> Path:
    """A directory where all that is free text is this one."""
    leave(
        directory,
        text,
        title=text,
        claims=[Claim(text, text, True)],
        caption=text,
        preset=text,
        settings={text: text},
        versions={text: text},
    )
    table = {"title": text, "columns": [text, text], "rows": [[text, text]], "note": text}
    damage(directory, summary=text, tables=[table])
    return directory


def test_everything_that_was_found_is_only_text(tmp_path: Path):
    tame = Page(compose(leave_everywhere(tmp_path / "tame", "harmless")))
    wild = Page(compose(leave_everywhere(tmp_path / "wild", EVIL)))
    tags = [[(tag, *given) for tag, given, _ in page.elements] for page in (tame, wild)]
    assert tags[0] == tags[1]
    # Title and preset in the contents and above the section, the title also in the page's; the
    # name and summary; 2 of the claim, 1 of the picture, 6 of the table, 2 settings, 2 versions.
    assert wild.text.count(EVIL) == 2 + 2 + 1 + 2 + 2 + 1 + 6 + 2 + 2
    (image,) = wild.find("img")
    assert image["alt"] == EVIL


def test_a_name_of_a_bundle_is_only_text(tmp_path: Path):
    name = "<script>&.big"
    (leave(tmp_path / "one") / "bundles" / name).write_bytes(b"")
    page = Page(compose(tmp_path / "one"))
    assert f"bundles/{name}" in page.read("code") and not page.find("script")


# How it reads


def test_it_is_a_document(tmp_path: Path):
    leave(tmp_path / "one", "a")
    leave(tmp_path / "two", "b")
    text = compose(tmp_path)
    page = Page(text)
    assert text.startswith("<!doctype html>") and page.find("html") == [{"lang": "en"}]
    for tag in ("main", "h1", "title", "nav", "footer"):
        assert len(page.find(tag)) == 1
    assert len(page.find("section")) == len(page.find("figure")) == 2
    assert all(head.get("scope") in ("row", "col") for head in page.find("th"))
    tables = [around for tag, _, around in page.elements if tag == "table"]
    assert len(tables) == 5 and all(around[-1] == "div.scroll" for around in tables)


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_luminance_of_known_colours():
    assert luminance("#ffffff") == pytest.approx(1) and luminance("#000000") == 0
    assert 1.05 / (luminance("#767676") + 0.05) == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("ink", ["ink", "quiet", "link", "holds", "fails"])
@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_stands_out(scheme: int, ink: str):
    pages = re.findall(r"--page: (#\w{6})", STYLE)
    inks = re.findall(rf"--{ink}: (#\w{{6}})", STYLE)
    assert len(pages) == len(inks) == 2
    dark, bright = sorted((luminance(pages[scheme]), luminance(inks[scheme])))
    assert (bright + 0.05) / (dark + 0.05) >= 4.5


def test_every_colour_and_class_of_the_page_is_defined(tmp_path: Path):
    claims = [Claim("One.", "1", True), Claim("Two.", "2", False)]
    directory = leave(tmp_path / "one", claims=claims)
    (directory / "bundles" / "a.big").write_bytes(b"")
    page = Page(compose(directory))
    used = {name for _, given, _ in page.elements for name in given.get("class", "").split()}
    assert used <= set(re.findall(r"\.([a-z]+)", STYLE))
    assert set(re.findall(r"var\((--\w+)\)", STYLE)) <= set(re.findall(r"(--\w+):", STYLE))
    assert STYLE.count("{") == STYLE.count("}")


# The command


def report(*arguments: str | Path) -> None:
    tyro.cli(Report, args=[str(a) for a in arguments]).perform()


def test_the_page_is_made_anew_in_its_directory(tmp_path: Path, capsys):
    directory = leave(tmp_path / "one", title="Old")
    report(directory)
    page = directory / "report.html"
    assert capsys.readouterr().out == f"Written to {page}\n"
    assert page.read_text(encoding="utf-8") == compose(directory)
    damage(directory, title="New")
    report(directory)
    assert "New" in page.read_text(encoding="utf-8")
    report(directory, "--out", page)  # the same file, so the same is meant


def test_whoever_has_the_page_open_keeps_it_whole(tmp_path: Path):
    directory = leave(tmp_path / "one", title="Old")
    report(directory)
    with open(directory / "report.html", encoding="utf-8") as opened:
        damage(directory, title="New")
        report(directory)
        assert "Old" in (before := opened.read()) and "New" not in before
    assert not list(directory.glob(".*"))


def test_another_file_is_not_overwritten(tmp_path: Path):
    directory, out = leave(tmp_path / "one"), tmp_path / "page.html"
    out.write_text("mine")
    with pytest.raises(ConfigError, match="exists. Overwrite it by `--force`"):
        report(directory, "--out", out)
    assert out.read_text() == "mine"
    report(directory, "--out", out, "--force")
    assert out.read_text(encoding="utf-8") == compose(directory)
    with pytest.raises(ConfigError, match="must be a file in a directory that exists"):
        report(directory, "--out", tmp_path / "nowhere" / "page.html")
    assert sorted(os.listdir(tmp_path)) == ["one", "page.html"]


def test_a_failure_leaves_the_page_that_was_there(tmp_path: Path):
    directory = leave(tmp_path / "one")
    report(directory)
    before = (directory / "report.html").read_bytes()
    (directory / findings.FILE).write_text("{")
    with pytest.raises(BigTrainError, match="must be JSON"):
        report(directory)
    assert (directory / "report.html").read_bytes() == before
