"""Simulators with known answers: what they are exactly, and demonstrations in them.

Car-Flag from 40 places in ±.2, between hundredths, stays between hundredths: that is a finite
problem, all of which is known exactly. Foggy is a problem of one number, the log-odds, of which a
fine grid knows enough.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from bigtrain import Demonstrations, TabularCMDP, Task, demonstrate
from bigtrain.finite import transitions

HEAVEN, HELL = "heaven", "hell"
STARTS = range(-39, 40, 2)
Place = tuple[int, int, int] | str
"""Place and speed in 200ths, and what the flag shows; or where the car ended."""


def move_car(context: int, place: Place, action: int) -> Place:
    """Car-Flag in whole numbers."""
    if isinstance(place, str):
        return place
    speed = int(np.clip(place[1] + 4 * (action - 1), -14, 14))
    x, side = place[0] + speed, 2 * context - 1
    if abs(x) >= 200:
        return HEAVEN if x * side > 0 else HELL
    return x, speed, side if abs(x - 100) < 20 else 0


def car_flag_table(hell: float = -1.0) -> TabularCMDP:
    """Car-Flag from 40 places in ±.2, with the observations of the simulator."""
    places: dict[Place, int] = {}
    waiting: list[Place] = [*((x, 0, 0) for x in STARTS), HEAVEN, HELL]
    while waiting:
        place = waiting.pop()
        if place not in places:
            places[place] = len(places)
            waiting += [move_car(context, place, a) for context in range(2) for a in range(3)]
    listed = list(places)
    seen = np.array([see(place) for place in listed], np.float32)
    drives = (seen[:, 3] + seen[:, 4] == 0) & (seen[:, 2] == 0)
    features = np.stack([drives, seen[:, 3], seen[:, 4]], -1).astype(float)
    reward = np.repeat((features @ [-1.0, 1.0, hell])[:, None], 3, 1)
    starts = [isinstance(place, tuple) and place[1:] == (0, 0) for place in listed]
    starts = np.array(starts) & (np.abs(seen[:, 0]) < 0.2)
    return TabularCMDP(
        transitions.from_function(
            lambda context, state, action: {places[move_car(context, listed[state], action)]: 1.0},
            num_contexts=2,
            num_states=len(listed),
            num_actions=3,
        ),
        [0.5, 0.5],
        starts / starts.sum(),
        gamma=0.99,
        features=np.repeat(features[:, None], 3, 1),
        observations=seen,
        task=Task(reward, (-1.0, 1.0)),
    )


def see(place: Place) -> list[float]:
    """What the simulator shows of a place."""
    if isinstance(place, str):
        return [0.0, 0.0, 0.0, float(place == HEAVEN), float(place == HELL)]
    return [place[0] / 200, place[1] / 200, place[2], 0.0, 0.0]


def as_seen(table: TabularCMDP, demos: Demonstrations) -> Demonstrations:
    """Demonstrations of states as demonstrations of what is seen."""
    seen = table.observation_array()[demos.observations]
    return Demonstrations(seen, demos.actions, demos.lengths, demos.contexts)


def show(table: TabularCMDP, *, episodes: int, horizon: int, seed: int = 0) -> Demonstrations:
    """The privileged expert of a table, as states."""
    assert table.task is not None
    return demonstrate(table, table.task.reward, episodes=episodes, horizon=horizon, seed=seed)


# ── Foggy, on a grid of log-odds ─────────────────────────────────────────────────────────────────


def foggy_values(
    reward: Float[np.ndarray, "5"], gamma: float = 0.99
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """The value of S0 relative to "over" for ever, and Q(heard, ·) on a grid of log-odds.

    A number heard moves the log-odds by N(±2, 4): it is twice the number.
    """
    start, heard, gold, tiger, over = reward - reward[4]
    grid = np.linspace(-30, 30, 3001)
    probs = 1 / (1 + np.exp(-grid))  # of the tiger being right
    ended_gold, ended_tiger = gold, tiger  # after either comes "over", worth 0
    opened = (
        np.stack(
            [
                probs * ended_gold + (1 - probs) * ended_tiger,
                (1 - probs) * ended_gold + probs * ended_tiger,
            ],
            -1,
        )
        * gamma
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    weights = weights / weights.sum()

    def listened(values: NDArray[np.float64]) -> NDArray[np.float64]:
        right = sum(
            w * np.interp(grid + 2 + 2 * n, grid, values)
            for n, w in zip(nodes, weights, strict=True)
        )
        left = sum(
            w * np.interp(grid - 2 + 2 * n, grid, values)
            for n, w in zip(nodes, weights, strict=True)
        )
        return gamma * (probs * right + (1 - probs) * left)

    values = heard + opened.max(-1)
    for _ in range(3000):
        renewed = heard + np.maximum(opened.max(-1), listened(values))
        moved, values = np.abs(renewed - values).max(), renewed
        if moved < 1e-10:
            break
    actions = np.concatenate([opened, listened(values)[:, None]], -1)
    middle = len(grid) // 2
    return float(start + actions[middle].max()), grid, heard + actions
