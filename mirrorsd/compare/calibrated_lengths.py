"""Lengths of texts that a profile was calibrated for, and those of a record: what is told where they differ."""

from collections.abc import Collection
from math import sqrt

from decoding.errors import OutOfRangeError
from decoding.record import AcceptanceRecord
from hwprofiles.profile import Profile
from mirrorsd.compare.longer_tables import Tokens, with_longer_tables
from planner.wording import percent
from sim.acceptance.replay import Replay

Sides = tuple[object, object]
"""What a profile and a record are called, such as their files."""
_SIDES: Sides = ("the profile", "the record")


def calibrated_contexts(profile: Profile, lanes: Collection[str]) -> tuple[int, int] | None:
    """Return the fewest and most cached tokens timed on all of these lanes; None where a single context serves all."""
    layers = [lane.layer for lane in profile.lanes if lane.name in lanes and lane.layer is not None]
    ranges = [layer.contexts for layer in layers if len(layer.contexts) > 1]
    return (max(one[0] for one in ranges), min(one[-1] for one in ranges)) if ranges else None


def reaching(
    profile: Profile,
    record: AcceptanceRecord,
    lanes: Collection[str],
    *,
    sides: Sides = _SIDES,
    max_new_tokens: int | None = None,
) -> tuple[Profile, str | None]:
    """Return the profile with the tables of some lanes extrapolated to a record's lengths, and a warning of that.

    They are the profile itself and None where it was calibrated for these lengths, or nothing can be extrapolated.
    """
    tokens, reach = Tokens.of(record, max_new_tokens), calibrated_contexts(profile, lanes)
    longer = with_longer_tables(profile, lanes, tokens)
    if reach is None or longer == profile:
        return profile, None
    pairs = [(one.layer, other.layer) for one, other in zip(profile.lanes, longer.lanes, strict=True)]
    added = max(sqrt(other.relative_error**2 - one.relative_error**2) for one, other in pairs if one and other)
    return longer, (
        f"{_lengths(tokens, reach, sides)}. Times of the others ({percent(tokens.share_outside(*reach))} of their "
        f"tokens) are extrapolated in a straight line, and intervals are wider by what its slope may be off by: up to "
        f"{percent(added)} of a layer's time. {_to_calibrate(record)}"
    )


def require_reach(profile: Profile, record: AcceptanceRecord, lanes: Collection[str], *, sides: Sides = _SIDES) -> None:
    """Refuse texts of other lengths than the tables of some lanes have by `OutOfRangeError`, which names `sides`."""
    reach, tokens = calibrated_contexts(profile, lanes), Tokens.of(record)
    if reach is not None and tokens.share_outside(*reach):
        why = "no time differs enough by the length there to tell what others take"
        raise OutOfRangeError(f"{_lengths(tokens, reach, sides)}: {why}. {_to_calibrate(record)}")


def reach_in_words(profile: Profile, record: AcceptanceRecord, lanes: Collection[str]) -> str | None:
    """Return a warning that a calibration has seen only the lengths of a record's texts; None if nothing was."""
    if not any(lane.anchor is not None for lane in profile.lanes):
        return None
    reach, contexts = calibrated_contexts(profile, lanes), Replay(record).contexts(None)
    lengths = "" if reach is None else f" with {reach[0]:,} to {reach[1]:,} cached tokens"
    return (
        f"The profile was calibrated on made-up text{lengths}: it has seen none of these prompts and answers, which "
        f"have {contexts.start:,} to {contexts.stop - 1:,}."
    )


def _lengths(tokens: Tokens, reach: tuple[int, int], sides: Sides) -> str:
    return (
        f"{sides[1]}: its texts have {tokens.contexts[0]:,} to {tokens.contexts[-1]:,} cached tokens, and {sides[0]} "
        f"was calibrated for {reach[0]:,} to {reach[1]:,}"
    )


def _to_calibrate(record: AcceptanceRecord) -> str:
    return (
        "Calibrate for these lengths, by `mirrorsd calibrate` with the prompts that were recorded (--prompts) and "
        f"--max-new-tokens {record.max_new_tokens}"
    )
