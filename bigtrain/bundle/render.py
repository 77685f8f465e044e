"""A bundle for a person, on one screen."""

from collections.abc import Iterator, Sequence

import numpy as np
import rich.box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bigtrain.belief import AmortisedInference
from bigtrain.bundle.model import ArraySpec, Bundle, RewardTables
from bigtrain.bundle.networks import Network, count_weights, describe_network
from bigtrain.finite import stored
from bigtrain.policy import NetworkPolicy

_MOST_NAMES = 8
_MOST_STATES = 12


def render(bundle: Bundle) -> RenderableType:
    """What it is, what it sees and does, what it wants, how good it is, and where it is from."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, fact in _facts(bundle):
        facts.add_row(name, Text(fact))  # names are from the file: they are text, never markup
    if bundle.problem is None or bundle.reward_tables is None:
        return facts
    return Group(facts, Text(), _render_reward(bundle.problem, bundle.reward_tables))


def _facts(bundle: Bundle) -> Iterator[tuple[str, str]]:
    yield "digest", bundle.digest
    yield "sees", _observation(bundle.observation)
    yield "does", _list(bundle.action_names)
    believed = zip(bundle.context_names, bundle.context_prior, strict=True)
    yield "cannot see", _list([f"{name} ({probability:.3g})" for name, probability in believed])
    yield "policy", _policy(bundle)
    if bundle.successor is not None:
        yield "expert", f"successor features, {_network(bundle.successor)}"
    yield from _results(bundle)
    yield from _exploration(bundle)
    made = bundle.provenance
    version = made.versions.get("big-imitation", "of an unknown version")
    yield "made by", f"{made.method}, seed {made.seed}, big-imitation {version}"
    yield (
        "made from",
        f"{made.num_demonstrations:,} demonstrations, {made.demonstrations_digest[:12]}…",
    )


def _observation(spec: ArraySpec) -> str:
    shape = " × ".join(map(str, spec.shape))
    bounds = "" if spec.minimum is None else f", from {spec.minimum:g} to {spec.maximum:g}"
    if spec.value_names:
        return f"the number of a state ({spec.dtype}{bounds})"
    return f"{shape} {spec.dtype}{bounds}" if shape else f"one {spec.dtype}{bounds}"


def _policy(bundle: Bundle) -> str:
    policy = bundle.policy
    if not isinstance(policy, NetworkPolicy):
        return stored.describe_policy(policy)
    inference = policy.inference
    learned = isinstance(inference, AmortisedInference)
    belief = f"learned, {_network(inference)}" if learned else "exact"
    return f"{_network(policy.network)}; belief {belief}"


def _network(network: Network) -> str:
    config, core_width = describe_network(network)
    parts = [f"{channels} channels" for channels in config.channels]
    parts.append(f"{config.depth} layers of {config.width}")
    parts += [] if core_width is None else [f"GRU of {core_width}"]
    return f"{', '.join(parts)} ({count_weights(network):,} weights)"


def _results(bundle: Bundle) -> Iterator[tuple[str, str]]:
    measured, certificate = bundle.measured, bundle.certificate
    if measured is not None:
        played = f"in {measured.episodes:,} episodes of {measured.horizon} steps"
        evaluation = measured.evaluation
        if evaluation.success is not None:
            yield "success", f"{evaluation.success} {played}"
        if evaluation.exploring is not None:
            yield "explores", f"{evaluation.exploring} steps an episode"
        yield "return", f"{evaluation.total_return} {played}"
        if measured.regret is not None:
            regret, share = measured.regret, measured.regret.normalised
            of = "" if share is None else f", {share:.3g} of what exploring is worth"
            yield "regret", f"{regret.absolute:.3g} of {regret.optimal:.6g}{of}"
    if certificate is not None:
        proof = "closed" if certificate.closed else "open"
        own = certificate.value
        reached = "" if own is None else f"; the policy's is {own:.6g} or more"
        bounds = f"{certificate.lower:.6g} to {certificate.upper:.6g}"
        yield "best value", f"{bounds} ({proof}){reached}"


def _exploration(bundle: Bundle) -> Iterator[tuple[str, str]]:
    exploration, problem = bundle.exploration, bundle.problem
    if bundle.exploration_note:
        yield "exploring", bundle.exploration_note
    if exploration is None or problem is None:
        return
    states, actions = exploration.indices(problem)
    places = _list([problem.state_names[state] for state in states])
    if len(actions) < problem.num_actions:
        places += f" by {_list([problem.action_names[action] for action in actions])}"
    low, high = exploration.k.support
    worth = f"k from {np.min(low):g} to {np.max(high):g}, {exploration.k.mean.mean():g} in the mean"
    yield "exploring", f"in {places}: {worth}"


def _render_reward(problem: stored.StoredProblem, tables: RewardTables) -> Table:
    """The states where the reward is least and greatest, in the order of the problem."""
    mean = tables.mean.mean(-1)
    order = np.argsort(mean, kind="stable")
    shown = order
    if len(order) > _MOST_STATES:
        shown = np.concatenate([order[: _MOST_STATES // 2], order[-_MOST_STATES // 2 :]])
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("state", no_wrap=True)
    alike = (tables.mean == tables.mean[:, :1]).all()
    for column in ("reward" if alike else "reward, by action", "±"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for state in sorted(shown.tolist()):
        low, high = tables.mean[state].min(), tables.mean[state].max()
        table.add_row(
            Text(problem.state_names[state]),
            f"{low:.4g}" if alike else f"{low:.4g} to {high:.4g}",
            f"{tables.deviation[state].max():.3g}",
            "exploring" if tables.explores[state].any() else "",
        )
    if left := problem.num_states - len(shown):
        table.caption = f"and {left:,} states in between"
    return table


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    left = len(names) - _MOST_NAMES
    return f"{shown} and {left:,} more" if left > 0 else shown
