"""How much a msgpack payload claims to hold, counted before any memory is taken for it.

msgpack's own limits are for each list and map alone, and it takes memory for a list when it sees
the head. So a small file of many heads, within each other or side by side, could ask for very much.
"""

from bigtrain.errors import BundleLimitError, BundleStructureError
from bigtrain.storage.limits import MAX_DEPTH, MAX_VALUES

# By the first byte of a value: how many bytes follow; how many the length of a text or a block has;
# how many that of a list or a map has, with the values in an entry.
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8}
_FIXED |= {head: 1 << (head & 3) for head in range(0xCC, 0xD4)}
_BLOCKS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_HOLDERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def survey(payload: memoryview) -> None:
    """Raises where a payload ends too early, or holds too much or too deeply."""
    place, count, waiting = 0, 1, [1]  # the values still to come, at each depth
    while waiting:
        if place >= len(payload):
            raise BundleStructureError("The payload must be msgpack, but it ends too early.")
        place, parts = _step(payload, place)
        waiting[-1] -= 1
        count += parts
        if count > MAX_VALUES:
            raise BundleLimitError(f"A bundle must hold at most {MAX_VALUES:,} values, got more.")
        if parts:
            waiting.append(parts)
        if len(waiting) > MAX_DEPTH + 1:
            raise BundleLimitError(
                f"Maps and lists must not be within each other more than {MAX_DEPTH} deep."
            )
        while waiting and waiting[-1] == 0:
            waiting.pop()


def _step(payload: memoryview, place: int) -> tuple[int, int]:
    """Where the value after this one begins, or its first part, and how many parts it has."""
    head, place = payload[place], place + 1
    if head < 0x80 or head >= 0xE0:
        return place, 0
    if head < 0x90:
        return place, 2 * (head & 0x0F)
    if head < 0xA0:
        return place, head & 0x0F
    if head < 0xC0:
        return place + (head & 0x1F), 0
    if head in _FIXED:
        return place + _FIXED[head], 0
    if head in _BLOCKS:
        after = place + _BLOCKS[head]
        return after + int.from_bytes(payload[place:after], "big"), 0
    if head in _HOLDERS:
        width, share = _HOLDERS[head]
        after = place + width
        return after, share * int.from_bytes(payload[place:after], "big")
    raise BundleStructureError(f"The payload must be msgpack without extensions, got {head:#x}.")
