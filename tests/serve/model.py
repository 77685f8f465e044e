"""The rules of `policy.proto` as a plain model: a dictionary of episodes, one item at a time.

Slow and obvious on purpose. Whatever a server does with many clients at once, each item must be
answered as it is here, given the items of the same episode before it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

from bigproto.v1 import policy_pb2 as pb

History = tuple[tuple[Hashable, int], ...]
"""Observation and action of every step so far."""


@dataclass(frozen=True)
class Decision:
    """What a policy makes of a moment: its belief, and the actions that its rule may choose."""

    belief: tuple[float, ...]
    actions: frozenset[int]


Policy = Callable[[History, Hashable], "Decision | pb.Problem"]
"""From history and observation to a decision, or to what is wrong with the observation."""


@dataclass(frozen=True)
class Reply:
    """The item was applied, or had been and is answered again."""

    decision: Decision
    duplicate: bool


@dataclass(frozen=True)
class Refusal:
    """The item changed nothing."""

    problem: pb.Problem
    expected_step: int = 0


Outcome = Reply | Refusal


@dataclass(frozen=True)
class Episode:
    """All that the rules know of an episode. `closed` says why, once it is."""

    policy: Policy
    history: History = ()
    last: Decision | None = None
    closed: pb.Problem | None = None


@dataclass
class Rules:
    """Every episode there is or was, by its id."""

    episodes: dict[str, Episode] = field(default_factory=dict)

    def start(self, episode_id: str, policy: Policy) -> None:
        self.episodes[episode_id] = Episode(policy)

    def problem_of(self, episode_id: str) -> pb.Problem | None:
        """Why an episode takes no steps; None for an open one."""
        if episode_id not in self.episodes:
            return pb.PROBLEM_EPISODE_UNKNOWN
        return self.episodes[episode_id].closed

    def act(
        self, items: Sequence[tuple[str, int, Hashable]], answered: Sequence[int]
    ) -> list[Outcome]:
        """What each item of one message must come to.

        `answered` holds the actions that came back, since a rule that draws leaves a choice.
        """
        outcomes: list[Outcome] = []
        before = set[str]()
        for (episode_id, step, seen), action in zip(items, answered, strict=True):
            if episode_id in before:
                outcomes.append(Refusal(pb.PROBLEM_ITEM_INVALID))
            else:
                outcomes.append(self._step(episode_id, step, seen, action))
            before.add(episode_id)
        return outcomes

    def _step(self, episode_id: str, step: int, seen: Hashable, action: int) -> Outcome:
        problem = self.problem_of(episode_id)
        if problem is not None:
            return Refusal(problem)
        episode = self.episodes[episode_id]
        expected = len(episode.history)
        if step > expected:
            return Refusal(pb.PROBLEM_STEP_AHEAD, expected)
        if step < expected - 1:
            return Refusal(pb.PROBLEM_STEP_BEHIND, expected)
        if step == expected - 1:
            assert episode.last is not None
            last_seen, last_action = episode.history[-1]
            if seen != last_seen:
                return Refusal(pb.PROBLEM_STEP_DIFFERS, expected)
            return Reply(replace(episode.last, actions=frozenset({last_action})), duplicate=True)
        decision = episode.policy(episode.history, seen)
        if not isinstance(decision, Decision):
            return Refusal(decision)
        history = (*episode.history, (seen, action))
        self.episodes[episode_id] = replace(episode, history=history, last=decision)
        return Reply(decision, duplicate=False)

    def end(self, episode_id: str) -> pb.Problem | None:
        """What End says of an episode; None: nothing."""
        problem = self.problem_of(episode_id)
        if problem is None:
            self.close(episode_id, pb.PROBLEM_EPISODE_ENDED)
        return None if problem == pb.PROBLEM_EPISODE_ENDED else problem

    def close(self, episode_id: str, why: pb.Problem) -> None:
        self.episodes[episode_id] = replace(self.episodes[episode_id], closed=why)

    def export(self, episode_id: str, *, close: bool) -> Episode | pb.Problem:
        """A copy of the episode, or what is wrong with it."""
        problem = self.problem_of(episode_id)
        if problem is not None:
            return problem
        copy = self.episodes[episode_id]
        if close:
            self.close(episode_id, pb.PROBLEM_EPISODE_EXPORTED)
        return copy

    def take_in(self, episode_id: str, copy: Episode) -> pb.Problem | None:
        """What Import says of a copy; None: it goes on here."""
        there = self.episodes.get(episode_id)
        if there is not None and there.closed is None:
            if there != copy:
                return pb.PROBLEM_EPISODE_EXISTS
        elif there is not None and (
            there.closed != pb.PROBLEM_EPISODE_EXPORTED or len(copy.history) < len(there.history)
        ):
            return there.closed
        self.episodes[episode_id] = copy
        return None
