"""`bigtrain envs` and `bigtrain inspect`: what there is, and what is in a file."""

from dataclasses import dataclass
from typing import final

import tyro
from rich.table import Table
from rich.text import Text

from bigtrain import envs
from bigtrain.bundle import load_bundle, render
from bigtrain.cli.command import Command, File, show, show_json
from bigtrain.cli.problems import show_option


@final
@dataclass(frozen=True)
class Envs(Command):
    """List the environments, with their sizes and options."""

    json: bool = False
    """Print JSON."""

    def perform(self) -> None:
        if self.json:
            return show_json([_describe(name) for name in envs.names()])
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("name", "states", "actions", "contexts", "what it is, and its options"):
            sized = column in ("states", "actions", "contexts")
            table.add_column(column, justify="right" if sized else "left", no_wrap=sized)
        for env in map(_describe, envs.names()):
            options = [f"{name}={show_option(value)}" for name, value in env["options"].items()]
            sizes = (str(env[size]) for size in ("states", "actions", "contexts"))
            about = Text(env["description"]).append(f"\n{'  '.join(options)}", style="dim")
            table.add_row(Text(env["name"], style="bold"), *sizes, about)
        show(table)


@final
@dataclass(frozen=True)
class Inspect(Command):
    """Show what is in a bundle: the policy, its reward, how good it is, and where it is from."""

    file: tyro.conf.Positional[File]
    """The bundle, as `fit` wrote it."""

    json: bool = False
    """Print JSON."""

    def perform(self) -> None:
        bundle = load_bundle(self.file)
        return show_json(bundle.summary()) if self.json else show(render(bundle))


def _describe(name: str) -> dict:
    env = envs.make(name)
    return {
        "name": name,
        "states": env.num_states,
        "actions": env.num_actions,
        "contexts": env.num_contexts,
        "options": envs.options(name),
        "description": envs.describe(name),
    }
