"""The rules for the items of an Act: which are next steps, which are answered again or refused."""

import numpy as np
from jaxtyping import Bool, Shaped

from bigserve.acts import Answer, Waiting
from bigserve.episodes import Episodes
from bigserve.errors import Fault, Problem, quoted
from bigserve.models import Version
from bigtrain.bundle import ArraySpec

_LARGEST = {
    "int64": np.iinfo(np.int32).max,
    "float32": np.finfo(np.float32).max,
    "float64": np.finfo(np.float32).max,
}
"""What the engine can take, which has 32 bits for a number."""

IMPOSSIBLE = (
    Problem.OBSERVATION_IMPOSSIBLE,
    "No context explains that this observation followed the last action. If it is right, the model "
    "does not describe the world; otherwise send it as it was.",
)


def sort_out(
    episodes: Episodes,
    version: Version,
    waiting: Waiting,
    observations: Shaped[np.ndarray, "item ..."],
) -> list[int]:
    """Answers or refuses items one by one. The places of those that are left."""
    answer, act, places = waiting.answer, waiting.act, list[int]()
    valid = are_valid(observations, version.bundle.observation)
    repeated = find_repeated(act.ids)
    for place, id in enumerate(act.ids):
        episode = episodes.get(act.owner, id)
        if place in repeated:
            fault = repeated[place]
        elif episode is None:
            fault = episodes.explain_absence(act.owner, id, place)
        elif episode.ticket != waiting.tickets[place]:
            message = f"Episode {quoted(id)} was opened while this waited. Send it again."
            fault = Fault(place, Problem.ITEM_INVALID, message)
        else:
            fault = _examine(episodes, version, answer, place, episode.slot, observations[place])
            if fault is None and place not in answer.duplicates:
                if valid[place]:
                    places.append(place)
                else:
                    fault = _invalid(place, version.bundle.observation)
        if fault is not None:
            answer.faults.append(fault)
    return places


def _examine(
    episodes: Episodes,
    version: Version,
    answer: Answer,
    place: int,
    slot: int,
    observation: Shaped[np.ndarray, "..."],
) -> Fault | None:
    """What is wrong with the step of an open episode, unless it is the next or a duplicate."""
    expected, step = int(episodes.next_step[slot]), answer.act.steps[place]
    message = f"Step {expected} must come next, got {step}"
    if step > expected:
        message = f"{message}: a step is missing."
        return Fault(place, Problem.STEP_AHEAD, message, expected)
    if step < expected - 1:
        message = f"{message}, which was answered long ago."
        return Fault(place, Problem.STEP_BEHIND, message, expected)
    if step == expected - 1:
        if version.layout.pack(observation[None]).tobytes() != version.seen[slot].tobytes():
            message = (
                f"Step {step} was made with another observation. Send step {expected}, or "
                f"step {step} as it was."
            )
            return Fault(place, Problem.STEP_DIFFERS, message, expected)
        answer.duplicates[place] = version.rows[slot].copy()
        episodes.renew(slot)
    return None


def find_repeated(ids: list[str]) -> dict[int, Fault]:
    """What is wrong with ids that occur for the second time, by place."""
    first = dict[str, int]()
    message = "An episode must occur once in a message, and {} has before."
    return {
        place: Fault(place, Problem.ITEM_INVALID, message.format(quoted(id)))
        for place, id in enumerate(ids)
        if first.setdefault(id, place) != place
    }


def _invalid(place: int, spec: ArraySpec) -> Fault:
    bounds = "" if spec.minimum is None else f" from {spec.minimum:g} to {spec.maximum:g}"
    message = f"`observation` must be finite numbers{bounds}, and row {place} is not."
    return Fault(place, Problem.OBSERVATION_INVALID, message)


def are_valid(
    observations: Shaped[np.ndarray, "step ..."], spec: ArraySpec
) -> Bool[np.ndarray, " step"]:
    """Which rows hold only finite numbers within the bounds."""
    if spec.minimum is not None and spec.maximum is not None:
        fine = (observations >= spec.minimum) & (observations <= spec.maximum)
    elif (limit := _LARGEST.get(spec.dtype)) is not None:
        fine = (observations >= -limit) & (observations <= limit)  # np.abs(INT64_MIN) is negative
    else:
        return np.ones(len(observations), bool)
    return np.asarray(fine.reshape(len(observations), -1).all(1))
