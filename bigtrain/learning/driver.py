"""The one loop of learning: collect, update, judge, tell, keep.

    (state_{i+1}, metrics_i) = update(state_i, member, collect(actor(state_i, member), key), key')

for i up to the stage's end; states, members and metrics have a leading axis [member]. What is
learned is a pure function of trajectories (`Stage.update`), and so is who collects them
(`Stage.actor`). Where the simulator compiles, many iterations are one program, `scan(update ∘
collect)`; where it does not, the host plays with a compiled actor and the update is compiled. The
members of a drive (seeds, and settings that differ only in numbers) learn side by side.
"""

import abc
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, PRNGKeyArray, PyTree, Shaped

from bigtrain.problem import Actor, Simulator, Trajectories
from bigtrain.runs import Callback, Event, Run

State = TypeVar("State", bound=Any)

MemberMetrics = dict[str, Shaped[np.ndarray, " member"]]
"""What is measured of every member, by name."""
"""What learning changes: a tuple with a random `key`, and `step` counting iterations."""


class Collection(NamedTuple):
    """How much is collected in an iteration: see `Simulator.collect`."""

    num_envs: int
    horizon: int
    restart: bool


class Stage(eqx.Module):
    """A part of learning: so many iterations of one kind, of one member.

    `begin` is the step of the state at which it begins, `total` how many iterations follow, and
    `phase` what they are called in events. `chunk` iterations are one program, and whoever wants to
    know hears of them afterwards.
    """

    phase: ClassVar[str]

    @property
    @abc.abstractmethod
    def simulator(self) -> Simulator:
        """Where trajectories are collected."""

    @property
    @abc.abstractmethod
    def begin(self) -> int: ...

    @property
    @abc.abstractmethod
    def total(self) -> int: ...

    @property
    @abc.abstractmethod
    def chunk(self) -> int: ...

    @property
    @abc.abstractmethod
    def collection(self) -> Collection: ...

    @abc.abstractmethod
    def actor(self, state: Any, member: PyTree) -> Actor:
        """Who collects in the next iteration."""

    @abc.abstractmethod
    def update(
        self, state: Any, member: PyTree, trajectories: Trajectories, key: PRNGKeyArray
    ) -> tuple[Any, Any]:
        """The state after an iteration, its step not yet counted, and what was measured."""

    def events(self, metrics: Any, done: int) -> list[tuple[int, MemberMetrics]]:
        """Steps and what to tell of them, from metrics [member, iteration]; the last, if not
        more."""
        last = {name: np.asarray(part)[:, -1] for name, part in metrics._asdict().items()}
        return [(done + len(next(iter(metrics))[0]), last)]


class Judge(abc.ABC):
    """Says how good members are while they learn, keeps what is best, and when it is enough.

    What it keeps, its `verdict`, is a pytree of arrays: it goes into checkpoints.
    """

    @abc.abstractmethod
    def init(self, states: Any) -> Any:
        """The verdict before anything was learned."""

    def begin(self, stage: Stage, verdict: Any) -> Any:
        """The verdict at the beginning of a stage."""
        return verdict

    def measure(self, states: Any) -> MemberMetrics:
        """Numbers to tell of members as they are, also before anything is learned."""
        return {}

    @abc.abstractmethod
    def judge(self, states: Any, verdict: Any) -> tuple[Any, MemberMetrics]:
        """The verdict after a chunk, and numbers to tell, one for each member."""

    @abc.abstractmethod
    def enough(self, stage: Stage, states: Any, verdict: Any) -> bool:
        """Whether the stage may end early."""


def drive(
    stages: Sequence[Stage],
    states: Any,
    members: PyTree,
    *,
    judge: Judge,
    run: Run,
    phase: str,
    callbacks: Sequence[Callback] = (),
) -> tuple[Any, Any, list[Event]]:
    """All stages in a row: states, verdict and events.

    A run that was interrupted goes on from its last checkpoint, called `phase`.
    """
    verdict = judge.init(states)
    _, (states, verdict) = run.resume((states, verdict), phase=phase) or (0, (states, verdict))
    phases = {stage.phase for stage in stages}
    history = [event for event in run.events() if event.phase in phases]
    if not history and (measured := judge.measure(states)):
        history.append(Event(stages[0].phase, 0, _as_lists(measured)))
        run.record(history[0])
    try:
        for stage in stages:
            if _steps(states) == stage.begin:
                verdict = judge.begin(stage, verdict)
            end = stage.begin + stage.total
            while (done := _steps(states)) < end and not judge.enough(stage, states, verdict):
                size = min(stage.chunk, end - done)
                states, metrics = advance(stage, states, members, size)
                verdict, measured = judge.judge(states, verdict)
                events = _events(stage, metrics, done - stage.begin, measured)
                for event in events:  # all of them, before a callback may interrupt
                    history.append(event._replace(total=None))
                    run.record(event)
                for event, callback in itertools.product(events, callbacks):
                    callback(event)
                run.checkpoint(_steps(states), (states, verdict), phase=phase)
    finally:  # also when somebody interrupts
        run.checkpoint(_steps(states), (states, verdict), force=True, phase=phase)
    return states, verdict, history


def _steps(states: Any) -> int:
    return int(states.step.max())


def _events(stage: Stage, metrics: Any, done: int, measured: MemberMetrics) -> list[Event]:
    """What is measured of a whole chunk is told with its last step."""
    told = stage.events(metrics, done)
    told[-1][1].update(measured)
    return [Event(stage.phase, step, _as_lists(found), stage.total) for step, found in told]


def _as_lists(measured: MemberMetrics) -> dict[str, list[float]]:
    return {name: np.asarray(values).tolist() for name, values in measured.items()}


def advance(stage: Stage, states: Any, members: PyTree, num_iterations: int) -> tuple[Any, Any]:
    """Some iterations of every member: the states, and metrics [member, iteration]."""
    if stage.simulator.is_traceable:
        return _advance(stage, states, members, num_iterations)
    collected = []
    for _ in range(num_iterations):
        # The host plays members one by one; before and after, all of them are one program.
        states, keys, actors = _begin(stage, states, members)
        rows = [
            stage.simulator.collect(_pick(actors, place), key, **stage.collection._asdict())
            for place, key in enumerate(keys[:, 0])
        ]
        trajectories = jax.tree.map(lambda *parts: jnp.stack(parts), *rows)
        states, metrics = _finish(stage, states, members, trajectories, keys[:, 1])
        collected.append(metrics)
    return states, jax.tree.map(lambda *parts: jnp.stack(parts, axis=1), *collected)


@eqx.filter_jit
def _advance(stage: Stage, states: Any, members: PyTree, num_iterations: int) -> tuple[Any, Any]:
    # Members by `vmap`, iterations by `scan`: all of a chunk is one program, and the host is asked
    # nothing in between.
    def iterate(state, member):
        state, (key_collect, key_update) = _split(state)
        actor = stage.actor(state, member)
        trajectories = stage.simulator.collect(actor, key_collect, **stage.collection._asdict())
        return _count(*stage.update(state, member, trajectories, key_update))

    def one(state, member):
        return jax.lax.scan(lambda s, _: iterate(s, member), state, length=num_iterations)

    return jax.vmap(one)(states, members)


@eqx.filter_jit
def _begin(stage: Stage, states: Any, members: PyTree) -> tuple[Any, Any, Actor]:
    def one(state, member):
        state, keys = _split(state)
        return state, keys, stage.actor(state, member)

    return eqx.filter_vmap(one)(states, members)


@eqx.filter_jit
def _finish(
    stage: Stage,
    states: Any,
    members: PyTree,
    trajectories: Trajectories,
    keys: Key[Array, " member"],
) -> tuple[Any, Any]:
    return jax.vmap(lambda *given: _count(*stage.update(*given)))(
        states, members, trajectories, keys
    )


def _split(state: Any) -> tuple[Any, Key[Array, "2"]]:
    """The state with a key of its own, and those of collecting and updating."""
    # The key goes through the state, so an interrupted run goes on with the numbers it would have.
    keys = jax.random.split(state.key, 3)
    return state._replace(key=keys[0]), keys[1:]


def _count(state: Any, metrics: Any) -> tuple[Any, Any]:
    return state._replace(step=state.step + 1), metrics


@eqx.filter_jit
def _pick(tree: Any, place: Int[Array, ""] | int) -> Any:
    return jax.tree.map(lambda leaf: leaf[place], tree)


pick = _pick
"""One member of many, compiled as one: array by array it would be a program for every shape."""


def of_member(history: Sequence[Event], place: int) -> tuple[Event, ...]:
    """What was reported of one member."""
    return tuple(
        event._replace(metrics={n: np.asarray(v)[place].item() for n, v in event.metrics.items()})
        for event in history
    )
