"""A maze with two doors, gold behind one of them (section 5.3), seen as symbols or as pictures.

The state is a cell and what was just heard, or Gold or Tiger. Listening stays in the cell and sets
the indicator; a move clears it. Behind a door wait Gold or Tiger, and then the agent is back at x.
"""

from collections.abc import Mapping, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped, UInt8

from bigtrain.errors import CMDPError
from bigtrain.finite import transitions
from bigtrain.finite.cmdp import TabularCMDP, Task
from bigtrain.finite.envs.options import check_probability

DEFAULT_MAP = ("#####", "#...#", "L.S.R", "#.x.#", "#####")
ACTIONS = ("up", "down", "left", "right", "listen")
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
LISTEN = 4
INDICATORS = ("none", "gold-left", "gold-right")
"""What a state of the maze can show of where the gold is."""

CELL_PIXELS = 4
"""The width of a cell in the picture that is seen."""

WALL, FLOOR, DOOR, AGENT, GOLD_COLOUR, TIGER_COLOUR = (
    np.array(colour, np.uint8)
    for colour in (
        (40, 40, 48),
        (225, 225, 215),
        (130, 85, 45),
        (45, 95, 200),
        (250, 195, 30),
        (220, 80, 35),
    )
)


def tiger_maze(
    *,
    p_hear: float = 1.0,
    map: Sequence[str] = DEFAULT_MAP,
    observation: str = "symbolic",
    prior: Sequence[float] = (0.5, 0.5),
) -> TabularCMDP:
    """Find out which door hides the gold, then fetch it again and again.

    `map` is drawn with `#` wall, `.` floor, `S` start, `L` and `R` doors and `x` the place to
    return to. `observation` is "symbolic" (one-hot row, column and indicator) or "pixels".
    """
    check_probability("p_hear", p_hear)
    grid = _check_map(map)
    rows, columns = np.nonzero(~np.isin(grid, ("#", "L", "R")))
    cells = list(zip(rows.tolist(), columns.tolist(), strict=True))
    number = {cell: index for index, cell in enumerate(cells)}
    doors = {
        (int(row), int(column)): context
        for context, mark in enumerate("LR")
        for row, column in np.argwhere(grid == mark)
    }
    num_indicated = len(INDICATORS) * len(cells)
    gold, tiger = num_indicated, num_indicated + 1
    back = len(INDICATORS) * number[_place(grid, "x")]
    start = len(INDICATORS) * number[_place(grid, "S")]

    def outcomes(context: int, state: int, action: int) -> Mapping[int, float]:
        if state in (gold, tiger):
            return {back: 1.0}
        cell = state // len(INDICATORS)
        if action == LISTEN:
            heard, misheard = len(INDICATORS) * cell + np.array([1 + context, 2 - context])
            return {int(heard): p_hear, int(misheard): 1 - p_hear}
        row, column = np.add(cells[cell], MOVES[action]).tolist()
        door = doors.get((row, column))
        if door is not None:
            return {gold if door == context else tiger: 1.0}
        return {len(INDICATORS) * number.get((row, column), cell): 1.0}

    num_states = num_indicated + 2
    names = [f"({r},{c}){heard}" for r, c in cells for heard in ("", " gold-left", " gold-right")]
    reward = np.zeros((num_states, len(ACTIONS)))
    reward[gold], reward[tiger] = 1, -0.05
    heard = np.arange(num_indicated).reshape(-1, len(INDICATORS))[:, 1:]
    return TabularCMDP(
        transitions.from_function(
            outcomes, num_contexts=2, num_states=num_states, num_actions=len(ACTIONS)
        ),
        prior,
        np.eye(num_states)[start],
        gamma=0.99,
        observations=_observer(observation, grid, rows, columns),
        state_names=(*names, "Gold", "Tiger"),
        action_names=ACTIONS,
        context_names=("gold-left", "gold-right"),
        task=Task(
            reward=reward,
            reward_range=(-0.05, 1.0),
            exploration_states=tuple(heard.ravel().tolist()),
            goal_states=(gold,),
            failure_states=(tiger,),
        ),
    )


class Painter(eqx.Module):
    """Draws a state from above: walls, doors, the agent, and what it just heard.

    The side of the agent's cell on which gold was heard turns golden; in Gold and Tiger the whole
    floor takes their colour.
    """

    background: UInt8[np.ndarray | Array, "height width 3"]
    is_floor: Shaped[np.ndarray | Array, "height width"]
    rows: Int[np.ndarray | Array, " cell"]
    columns: Int[np.ndarray | Array, " cell"]

    def __call__(self, state: Int[Array, ""]) -> UInt8[Array, "height width 3"]:
        height, width, _ = self.background.shape
        y, x = jnp.arange(height)[:, None], jnp.arange(width)[None, :]
        num_cells = len(self.rows)
        cell, indicator = state // len(INDICATORS), state % len(INDICATORS)
        top = jnp.asarray(self.rows)[cell] * CELL_PIXELS
        left = jnp.asarray(self.columns)[cell] * CELL_PIXELS
        in_cell = (y >= top) & (y < top + CELL_PIXELS) & (x >= left) & (x < left + CELL_PIXELS)
        right_half = x >= left + CELL_PIXELS // 2
        # What was heard shows as gold in the half of the agent's cell on the gold's side.
        shown = in_cell & (indicator > 0) & (right_half == (indicator == 2))
        picture = jnp.where(in_cell[..., None], AGENT, jnp.asarray(self.background))
        picture = jnp.where(shown[..., None], GOLD_COLOUR, picture)
        colour = jnp.where(state == len(INDICATORS) * num_cells, GOLD_COLOUR, TIGER_COLOUR)
        behind_door = jnp.where(jnp.asarray(self.is_floor)[..., None], colour, self.background)
        return jnp.where(state < len(INDICATORS) * num_cells, picture, behind_door)


def _observer(
    kind: str,
    grid: Shaped[np.ndarray, "row column"],
    rows: Int[np.ndarray, " cell"],
    columns: Int[np.ndarray, " cell"],
) -> Painter | Float[np.ndarray, "state symbol"]:
    if kind == "symbolic":
        cells = np.concatenate([np.eye(grid.shape[0])[rows], np.eye(grid.shape[1])[columns]], -1)
        cells = np.repeat(cells, len(INDICATORS), 0)
        heard = np.tile(np.eye(len(INDICATORS)), (len(rows), 1))
        symbols = np.zeros((len(cells) + 2, cells.shape[1] + len(INDICATORS) + 2), np.float32)
        symbols[:-2, :-2] = np.concatenate([cells, heard], -1)
        symbols[-2, -2] = symbols[-1, -1] = 1
        return symbols
    if kind == "pixels":
        colours = np.where((grid == "#")[..., None], WALL, FLOOR)
        colours = np.where(np.isin(grid, ("L", "R"))[..., None], DOOR, colours)
        is_floor = ~np.isin(grid, ("#", "L", "R"))
        background, is_floor = (
            part.repeat(CELL_PIXELS, 0).repeat(CELL_PIXELS, 1) for part in (colours, is_floor)
        )
        return Painter(background.astype(np.uint8), is_floor, rows, columns)
    raise CMDPError(f"`observation` must be 'symbolic' or 'pixels', got {kind!r}.")


def _check_map(given: Sequence[str]) -> Shaped[np.ndarray, "row column"]:
    if isinstance(given, str):
        given = given.strip("\n").split("\n")
    if not given or len({len(row) for row in given}) != 1 or not given[0]:
        raise CMDPError(
            "`map` must have rows of one length, "
            f"got rows of the lengths {[len(row) for row in given]}."
        )
    grid = np.array([list(row) for row in given])
    unknown = sorted(set(grid.ravel().tolist()) - set("#.SLRx"))
    if unknown:
        raise CMDPError(f"`map` must be drawn with the characters #.SLRx, got {unknown} as well.")
    for mark, meaning in (("S", "the start"), ("x", "the place to return to")):
        count = int((grid == mark).sum())
        if count != 1:
            raise CMDPError(f"`map` must have one {mark!r}, {meaning}, got {count}.")
    for mark in "LR":
        if not (grid == mark).any():
            raise CMDPError(f"`map` must have a door {mark!r}, got none.")
    return grid


def _place(grid: Shaped[np.ndarray, "row column"], mark: str) -> tuple[int, int]:
    row, column = np.argwhere(grid == mark)[0].tolist()
    return row, column
