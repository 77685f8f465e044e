"""What may be under way at once: of a stream, of its caller, and of all."""

import asyncio
from typing import Any

import pytest
from cores import run

from bigserve.bounds import Bounds, Holding
from bigserve.config import LimitsConfig
from bigserve.errors import LimitReached


def bounds(**limits: Any) -> Bounds:
    held = {
        "max_held_bytes": 400,
        "max_held_bytes_per_caller": 200,
        "max_held_bytes_per_stream": 100,
    }
    return Bounds(LimitsConfig(**{**held, **limits}))


def stream(bounds: Bounds, caller: str = "me", held: int = 0) -> Holding:
    holding = bounds.enter(caller, streams=True)
    holding.hold(held)
    return holding


def test_a_stream_has_room_below_each_of_three_bounds():
    held = bounds()
    own = stream(held, held=99)
    assert own.has_room
    own.hold(1)
    assert not own.has_room  # its own
    own.hold(-1)
    others = stream(held, held=101)
    assert not own.has_room  # its caller's
    others.hold(-1)
    assert own.has_room
    stranger = stream(held, "somebody", held=201)
    assert not own.has_room  # the server's
    stranger.leave()
    assert own.has_room and held.held == 199


def test_who_holds_nothing_goes_on_whatever_others_hold():
    held = bounds()
    stream(held, held=350)
    assert stream(held).has_room  # by one message, as long as the server has room
    stream(held, held=50)
    assert not stream(held).has_room
    assert stream(held, "somebody").has_room  # a caller that holds nothing


def test_a_single_call_without_room_is_told_to_come_again():
    held = bounds()
    stream(held, held=400)
    call = held.enter("me", streams=False)
    with pytest.raises(LimitReached, match="all callers .* less than 400 bytes") as got:
        call.check_room()
    assert got.value.retry_after == 1.0


def test_single_calls_of_a_caller_hold_no_more_than_it_may():
    """Each holds nothing when it comes, so that only what the others hold can tell."""
    held = bounds()
    for _ in range(2):
        call = held.enter("me", streams=False)
        call.check_room()
        call.hold(100)
    with pytest.raises(LimitReached, match="one caller .* less than 200 bytes"):
        held.enter("me", streams=False).check_room()
    held.enter("you", streams=False).check_room()


@pytest.mark.parametrize("own, whose, other", [(100, "own", 0), (50, "me", 150), (10, "x", 390)])
@run
async def test_who_waits_goes_on_when_there_is_room_and_not_before(own, whose, other):
    """Where its own bound, its caller's or the server's is reached, and then not any more."""
    held = bounds()
    mine = stream(held, held=own)
    others = mine if whose == "own" else stream(held, whose, held=other)
    room = asyncio.create_task(mine.room())
    await asyncio.sleep(0)
    assert not room.done()
    others.hold(-1)
    await asyncio.wait_for(room, 5)


@run
async def test_waiting_leaves_nothing_behind():
    held = bounds()
    own = stream(held, held=100)
    for _ in range(50):
        room = asyncio.create_task(own.room())
        await asyncio.sleep(0)
        own.hold(-1)
        await asyncio.wait_for(room, 5)
        own.hold(1)
    assert not any(share.waiting for share in own._shares)


def test_a_call_that_is_over_holds_nothing():
    held = bounds()
    own = stream(held, held=50)
    own.leave()
    own.leave()
    own.hold(70)  # of a step that was under way
    assert held.held == 0 and not held._callers


@pytest.mark.parametrize("streams, what", [(True, "streams"), (False, "calls")])
def test_calls_are_counted_by_caller_and_in_all(streams, what):
    held = bounds(max_streams=3, max_streams_per_caller=2, max_calls=3, max_calls_per_caller=2)
    first, _ = (held.enter("me", streams=streams) for _ in range(2))
    with pytest.raises(LimitReached, match=f"At most 2 {what} of one caller"):
        held.enter("me", streams=streams)
    held.enter("you", streams=streams)
    with pytest.raises(LimitReached, match=f"At most 3 {what} of all callers"):
        held.enter("them", streams=streams)
    first.leave()
    held.enter("them", streams=streams)
