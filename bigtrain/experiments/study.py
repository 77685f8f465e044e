"""An experiment carried out in a directory, piece by piece.

    settings.json     the preset and all settings
    results/          what each piece found, one file each, written when it is done
    work/             metrics of each piece, and checkpoints until it is done
    bundles/          policies
    figures/          pictures, as PNG and as SVG
    findings.json     claims, tables and captions: all that a report needs

Interrupted or killed, it goes on where it was: pieces that are done are not done again, and a piece
at work goes on from its checkpoints.
"""

import gc
import json
import shutil
import time
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from bigtrain.atomic import atomic_write
from bigtrain.errors import CheckpointError, ConfigError
from bigtrain.experiments import findings
from bigtrain.experiments.experiment import Experiment, Preset, Workplace
from bigtrain.experiments.findings import Findings
from bigtrain.provenance import PACKAGES
from bigtrain.runs import Callback, Event, flatten_settings, keep_settings, lock


def carry_out(
    experiment: Experiment,
    directory: Path,
    *,
    preset: Preset = "fast",
    seeds: int | None = None,
    callbacks: Sequence[Callback] = (),
    tensorboard: bool = False,
) -> Findings:
    """Does all that is still to be done, and writes down what was found.

    `seeds` is how many there are, by default as the preset says.
    """
    if seeds is not None and seeds < 1:
        raise ConfigError(f"`seeds` must be at least 1, got {seeds}.")
    settings = experiment.settings(preset, seeds)
    directory.mkdir(parents=True, exist_ok=True)
    with lock(directory), warnings.catch_warnings():
        # Some ask for k* = 1 on purpose.
        warnings.filterwarnings("ignore", "With k = 1 exploring is worth as much")
        warnings.filterwarnings("ignore", "The best policy explores for ever")
        asked = {"experiment": experiment.name, "preset": preset, "of": settings}
        keep_settings(directory, asked, fingerprint="")
        for folder in ("results", "work", "bundles"):
            (directory / folder).mkdir(exist_ok=True)
        pieces = experiment.pieces(settings)
        found, seconds = {}, 0.0

        def tell_all() -> None:
            for callback in callbacks:
                callback(Event(experiment.name, len(found), {}, len(pieces)))

        tell_all()
        for name, work in pieces.items():
            path = directory / "results" / f"{name}.json"
            if not path.exists():
                heard = [_relabelled(callback, experiment.name, name) for callback in callbacks]
                workplace = Workplace(
                    directory / "work" / name, directory / "bundles", heard, tensorboard
                )
                _do(work, workplace, path)
            done = _read(path)
            found[name], seconds = done["found"], seconds + done["seconds"]
            tell_all()
        concluded = experiment.conclude(settings, found)
        about = {
            "experiment": experiment.name,
            "title": experiment.title,
            "preset": preset,
            "seconds": round(seconds, 1),
            "settings": flatten_settings(settings),
            "versions": {name: metadata.version(name) for name in PACKAGES},
        }
        findings.write(concluded, directory, about)
    return concluded


def _do(work: Any, workplace: Workplace, path: Path) -> None:
    begin = time.monotonic()
    found = work(workplace)
    row = {"found": found, "seconds": time.monotonic() - begin}
    with atomic_write(path) as file:
        file.write(json.dumps(row, allow_nan=False).encode())
    for checkpoints in workplace.directory.rglob("checkpoints"):  # large, and of no more use
        shutil.rmtree(checkpoints)
    # Compiled programs take memory maps, of which a process may have some 65,000. All experiments
    # together need more, and XLA then ends the process.
    jax.clear_caches()
    gc.collect()


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(
            f"`{path}` must be JSON, but is damaged ({error}). Remove it, and it is made again."
        ) from error


def _relabelled(callback: Callback, experiment: str, piece: str) -> Callback:
    def tell(event: Event) -> None:
        callback(event._replace(phase=f"{experiment}, {piece}: {event.phase}"))

    return tell
