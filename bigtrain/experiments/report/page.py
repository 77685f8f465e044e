"""From what was gathered to HTML. Nothing in it is a script, and nothing is fetched."""

import base64
import html
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bigtrain.experiments.findings import Cell, Claim, Table
from bigtrain.experiments.report.gather import Finished, Gathered, Image, PolicyFile
from bigtrain.experiments.report.style import STYLE
from bigtrain.experiments.report.wording import (
    NOTHING,
    is_numeric,
    tell_cell,
    tell_count,
    tell_size,
    tell_time,
)

_ABOUT = (
    "An expert who can see everything shows a task; the agent that must do it later sees less. BIG "
    "infers from the demonstrations what the expert wanted, takes a prior over what exploring may "
    "cost, and finds the policy that explores just as much as is worth it and then acts."
)
_PAPER = (
    "The method is that of <cite>A Bayesian Solution To The Imitation Gap</cite> (Vuorio, Fellows, "
    "Lu, Grislain, Whiteson)."
)
_PRESETS = {
    "fast": "settings that take the least time",
    "paper": "the paper’s settings",
    "smoke": "shows only that it runs",
}
# Should a browser ever see in a caption more than text, this keeps it from acting on it.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def render(gathered: Gathered) -> str:
    """The page; of the same directories it is the same, to the last byte."""
    finished = gathered.finished
    title = finished[0].title if len(finished) == 1 else "the experiments"
    anchors = _name_anchors(finished)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<link rel="icon" href="data:,">',  # without it, browsers ask a server for one
            f"<title>BIG: {_escape(title)}</title>",
            f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<header>",
            "<h1>BIG: closing the imitation gap</h1>",
            f'<p class="lead">{_ABOUT}</p>\n<p class="about">{_PAPER}</p>\n</header>',
            *_render_contents(gathered, anchors),
            *(
                line
                for one, anchor in zip(finished, anchors, strict=True)
                for line in _render_experiment(one, anchor)
            ),
            *_render_versions(finished),
            "</main>\n</body>\n</html>\n",
        ]
    )


def _render_contents(gathered: Gathered, anchors: Sequence[str]) -> Iterator[str]:
    claims = [claim for one in gathered.finished for claim in one.claims]
    time = tell_time(sum(one.seconds for one in gathered.finished))
    yield '<nav aria-label="Experiments">'
    yield (
        f"<p>{tell_count(len(gathered.finished), 'experiment')}, {time} of work: "
        f"<strong>{_tally(claims, 'claim')}</strong>.</p>"
    )
    yield _open_table("Experiments")
    heads = {"experiment": False, "claims": False, "preset": False, "time": True}
    yield _render_heads(heads, heads.values())
    yield "<tbody>"
    for one, anchor in zip(gathered.finished, anchors, strict=True):
        yield _row(
            f'<th scope="row"><a href="#{anchor}">{_escape(one.title)}</a></th>'
            f"<td>{_render_verdict(one.claims)}</td>"
            f'<td>{_escape(one.preset)}</td><td class="number">{tell_time(one.seconds)}</td>'
        )
    for one in gathered.unfinished:
        done = f"unfinished, {tell_count(one.num_pieces, 'piece')} done"
        yield _row(f'<th scope="row">{_escape(one.name)}</th><td colspan="3">{done}</td>')
    yield "</tbody>\n</table>\n</div>\n</nav>"


def _render_verdict(claims: Sequence[Claim]) -> str:
    return _mark(all(c.holds for c in claims), _tally(claims)) if claims else NOTHING


def _render_experiment(one: Finished, anchor: str) -> Iterator[str]:
    preset = f"preset {_escape(one.preset)}"
    if one.preset in _PRESETS:
        preset += f" ({_PRESETS[one.preset]})"
    yield f'<section id="{anchor}" aria-labelledby="{anchor}-title">'
    yield f'<h2 id="{anchor}-title">{_escape(one.title)}</h2>'
    yield (
        f'<p class="about"><code>{_escape(one.name)}</code>, {preset}, {tell_time(one.seconds)}</p>'
    )
    for paragraph in re.split(r"\n\s*\n", one.summary.strip()):
        yield f"<p>{_escape(paragraph)}</p>"
    if one.claims:
        yield f'<h3>Claims: {_tally(one.claims)}</h3>\n<ul class="claims" role="list">'
        yield from map(_render_claim, one.claims)
        yield "</ul>"
    yield from map(_render_image, one.images)
    for table in one.tables:
        yield from _render_table(table)
    if one.policies:
        yield from _render_policies(one.policies)
    if one.settings:
        yield from _render_settings(one.settings)
    yield "</section>"


def _render_claim(claim: Claim) -> str:
    mark = _mark(claim.holds, "holds" if claim.holds else "does not hold")
    shown = f'<p class="shown">{_escape(claim.shown)}</p>' if claim.shown else ""
    return f"<li>{mark}<div><p>{_escape(claim.statement)}</p>{shown}</div></li>"


def _render_image(image: Image) -> str:
    # As an image and not as elements of the page, an SVG has ids of its own and can do nothing.
    data = base64.b64encode(image.data).decode()
    caption = _escape(image.caption)
    return (
        f'<figure>\n<img src="data:{image.kind};base64,{data}" alt="{caption}">\n'
        f"<figcaption>{caption}</figcaption>\n</figure>"
    )


def _render_table(table: Table) -> Iterator[str]:
    columns = [
        [row[place] if place < len(row) else None for row in table.rows]
        for place in range(len(table.columns))
    ]
    numeric = [is_numeric(column) for column in columns]
    yield _open_table(table.title)
    yield f"<caption>{_escape(table.title)}</caption>"
    yield _render_heads(table.columns, numeric)
    yield "<tbody>"
    for row in zip(*columns, strict=True):
        yield _row("".join(_render_cells(row, numeric)))
    yield "</tbody>\n</table>\n</div>"
    if table.note:
        yield f'<p class="note">{_escape(table.note)}</p>'


def _render_heads(heads: Iterable[str], numeric: Iterable[bool]) -> str:
    pairs = zip(heads, numeric, strict=True)
    cells = (f'<th scope="col"{_align(right)}>{_escape(head)}</th>' for head, right in pairs)
    return f"<thead>{_row(''.join(cells))}</thead>"


def _render_cells(row: Sequence[Cell], numeric: Sequence[bool]) -> Iterator[str]:
    for place, (cell, right) in enumerate(zip(row, numeric, strict=True)):
        opened, closed = ("td", "td") if place else ('th scope="row"', "th")
        yield f"<{opened}{_align(right)}>{_escape(tell_cell(cell))}</{closed}>"


def _render_policies(policies: Sequence[PolicyFile]) -> Iterator[str]:
    # Served under a name that is given: not every file's name may be that of a model.
    command = f"bigserve {shlex.quote(f'policy={policies[0].path}')}"
    yield '<h3>Policies</h3>\n<ul class="policies">'
    for policy in policies:
        size = tell_size(policy.num_bytes)
        yield f"<li><code>{_escape(policy.path)}</code> <span>{size}</span></li>"
    yield f"</ul>\n<p>Each can be served, as by <code>{_escape(command)}</code>.</p>"


def _render_settings(settings: Mapping[str, str]) -> Iterator[str]:
    yield f"<details>\n<summary>{tell_count(len(settings), 'setting')}</summary>"
    yield _open_table("Settings")
    yield f"{_render_heads(('name', 'value'), (False, False))}\n<tbody>"
    for row in settings.items():
        yield _row("".join(_render_cells(row, (False, False))))
    yield "</tbody>\n</table>\n</div>\n</details>"


def _render_versions(finished: Sequence[Finished]) -> Iterator[str]:
    """Once, where all experiments ran with the same."""
    groups: dict[str, list[str]] = {}
    for one in finished:
        groups.setdefault(_tell_versions(one.versions), []).append(one.title)
    yield "<footer>\n<h2>Versions</h2>"
    for versions, titles in groups.items():
        whose = f"{_escape('; '.join(titles))}: " if len(groups) > 1 else ""
        yield f"<p>{whose}{_escape(versions)}</p>"
    yield "</footer>"


def _tell_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "not known"


def _name_anchors(finished: Sequence[Finished]) -> list[str]:
    """An id for each, that of its name; two of a name are told apart by a number."""
    anchors: list[str] = []
    for one in finished:
        slug = re.sub(r"[^a-z0-9]+", "-", one.name.lower()).strip("-") or "experiment"
        anchor, count = slug, 1
        while anchor in anchors:
            count += 1
            anchor = f"{slug}-{count}"
        anchors.append(anchor)
    return anchors


def _tally(claims: Sequence[Claim], noun: str = "") -> str:
    """As in "4 of 5 hold", or with a noun, "4 of 5 claims hold"."""
    holding = sum(claim.holds for claim in claims)
    count = tell_count(len(claims), noun) if noun else f"{len(claims)}"
    return f"{holding} of {count} {'holds' if len(claims) == 1 else 'hold'}"


def _mark(holds: bool, text: str) -> str:
    kind, sign = ("holds", "✓") if holds else ("fails", "✗")
    return f'<span class="mark {kind}"><span aria-hidden="true">{sign}</span> {text}</span>'


def _open_table(label: str) -> str:
    """A table that scrolls by itself, by keys too, where the page is narrower than it."""
    region = f'role="region" aria-label="{_escape(label)}" tabindex="0"'
    return f'<div class="scroll" {region}>\n<table>'


def _align(right: bool) -> str:
    return ' class="number"' if right else ""


def _row(cells: str) -> str:
    return f"<tr>{cells}</tr>"


def _escape(text: str) -> str:
    return html.escape(text, quote=True)
