"""The finite problems that `bigtrain.envs` makes."""

from bigtrain.finite.envs.crossroads import crossroads
from bigtrain.finite.envs.detour import detour
from bigtrain.finite.envs.lighthouse import lighthouse
from bigtrain.finite.envs.poisoned_doors import poisoned_doors
from bigtrain.finite.envs.three_state import three_state
from bigtrain.finite.envs.tiger_maze import CELL_PIXELS, INDICATORS, Painter, tiger_maze
from bigtrain.finite.envs.tiger_treasure import tiger_treasure

__all__ = [
    "CELL_PIXELS",
    "INDICATORS",
    "Painter",
    "crossroads",
    "detour",
    "lighthouse",
    "poisoned_doors",
    "three_state",
    "tiger_maze",
    "tiger_treasure",
]
