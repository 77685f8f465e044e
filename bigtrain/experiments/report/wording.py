"""How a report tells numbers: cells of tables, times, sizes, counts."""

import math
import re
from collections.abc import Sequence

from bigtrain.experiments.findings import Cell

NOTHING = "–"
# As in "0.97 ± 0.01", "2 of 2" or "< 10 ms", but not "3-state" or "5 × 5 maze".
_NUMERAL = re.compile(r"[<>≤≥≈]? ?[-+−]?\.?[\d∞](?!.*[A-Za-z]{4})")


def tell_cell(cell: Cell) -> str:
    """A cell as text; words are left as they are."""
    match cell:
        case None:
            return NOTHING
        case bool():
            return "yes" if cell else "no"
        case int():
            return f"{cell:,}"
        case float() if math.isinf(cell):
            return "∞" if cell > 0 else "-∞"
        case float() if abs(cell) >= 1e4:
            return f"{cell:,.0f}" if abs(cell) < 1e9 else f"{cell:.4g}"
        case float():
            return f"{cell:.4g}"
        case str():
            return cell


def is_numeric(column: Sequence[Cell]) -> bool:
    """Whether at least half of the cells that are there are numbers, or read like numbers."""
    there = [cell for cell in column if cell is not None]
    numerals = [_NUMERAL.match(tell_cell(cell)) is not None for cell in there]
    return bool(there) and 2 * sum(numerals) >= len(there)


def tell_time(seconds: float) -> str:
    """A time in the two units that matter."""
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def tell_size(num_bytes: int) -> str:
    """A file's size."""
    if num_bytes < 1_000:
        return f"{num_bytes} bytes"
    if num_bytes < 999_500:
        return f"{num_bytes / 1e3:.0f} kB"
    return f"{num_bytes / 1e6:.1f} MB"


def tell_count(count: int, noun: str) -> str:
    """A number of things."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
