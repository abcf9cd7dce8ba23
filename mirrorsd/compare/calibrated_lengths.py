"""Checks whether a profile was calibrated for the lengths of a record's texts, and extrapolates it if not."""

from collections.abc import Collection
from math import sqrt

from decoding.errors import OutOfRangeError
from decoding.record import AcceptanceRecord
from hwprofiles.profile import Profile
from mirrorsd.compare.extrapolated_tables import Tokens, with_longer_tables
from planner.wording import percent
from sim.acceptance.replay import Replay

Sides = tuple[object, object]
"""Names of a profile and a record in messages, such as their files."""
_SIDES: Sides = ("the profile", "the record")


def calibrated_contexts(profile: Profile, lanes: Collection[str]) -> tuple[int, int] | None:
    """Return the fewest and most cached tokens timed on all of `lanes`; None if one context stands for all lengths."""
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
    """Return the profile with the tables of `lanes` extrapolated to a record's lengths, and a warning about that.

    Return the profile itself and None if it was calibrated for these lengths, or if nothing can be extrapolated.
    """
    tokens, reach = Tokens.of(record, max_new_tokens), calibrated_contexts(profile, lanes)
    longer = with_longer_tables(profile, lanes, tokens)
    if reach is None or longer == profile:
        return profile, None
    pairs = [(one.layer, other.layer) for one, other in zip(profile.lanes, longer.lanes, strict=True)]
    added = max(sqrt(other.relative_error**2 - one.relative_error**2) for one, other in pairs if one and other)
    return longer, (
        f"{_lengths(tokens, reach, sides)}. Times beyond that ({percent(tokens.share_outside(*reach))} of the tokens) "
        f"are extrapolated linearly, and intervals are wider by the error of the slope, up to {percent(added)} of a "
        f"layer's time. {_to_calibrate(record)}"
    )


def require_reach(profile: Profile, record: AcceptanceRecord, lanes: Collection[str], *, sides: Sides = _SIDES) -> None:
    """Raise `OutOfRangeError`, which names `sides`, for texts of lengths that the tables of `lanes` do not cover."""
    reach, tokens = calibrated_contexts(profile, lanes), Tokens.of(record)
    if reach is not None and tokens.share_outside(*reach):
        why = "measured times differ too little by length to extrapolate them"
        raise OutOfRangeError(f"{_lengths(tokens, reach, sides)}: {why}. {_to_calibrate(record)}")


def reach_in_words(profile: Profile, record: AcceptanceRecord, lanes: Collection[str]) -> str | None:
    """Return a note that the calibration did not use the record's prompts; None for a profile that was not measured."""
    if not any(lane.anchor is not None for lane in profile.lanes):
        return None
    reach, contexts = calibrated_contexts(profile, lanes), Replay(record).contexts(None)
    lengths = "" if reach is None else f" with {reach[0]:,} to {reach[1]:,} cached tokens"
    return (
        f"The profile was calibrated on made-up text{lengths}, not on these prompts and answers, which have "
        f"{contexts.start:,} to {contexts.stop - 1:,} cached tokens."
    )


def _lengths(tokens: Tokens, reach: tuple[int, int], sides: Sides) -> str:
    return (
        f"{sides[1]}: its texts have {tokens.contexts[0]:,} to {tokens.contexts[-1]:,} cached tokens, but {sides[0]} "
        f"was calibrated for {reach[0]:,} to {reach[1]:,}"
    )


def _to_calibrate(record: AcceptanceRecord) -> str:
    return (
        "To calibrate for these lengths, give `mirrorsd calibrate` the prompts that were recorded (--prompts) and "
        f"--max-new-tokens {record.max_new_tokens}"
    )
