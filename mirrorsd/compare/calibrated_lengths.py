"""Lengths of texts that a profile was calibrated for, and those of a record: nothing is predicted beyond."""

from collections.abc import Collection

from decoding.errors import OutOfRangeError
from decoding.record import AcceptanceRecord
from hwprofiles.profile import Profile
from sim.acceptance.replay import Replay


def calibrated_contexts(profile: Profile, lanes: Collection[str]) -> tuple[int, int] | None:
    """Return the fewest and most cached tokens timed on all of these lanes; None where a single context serves all."""
    layers = [lane.layer for lane in profile.lanes if lane.name in lanes and lane.layer is not None]
    ranges = [layer.contexts for layer in layers if len(layer.contexts) > 1]
    return (max(one[0] for one in ranges), min(one[-1] for one in ranges)) if ranges else None


def require_reach(
    profile: Profile,
    record: AcceptanceRecord,
    lanes: Collection[str],
    *,
    sides: tuple[object, object] = ("the profile", "the record"),
) -> None:
    """Refuse texts of other lengths than were calibrated on some lanes by `OutOfRangeError`, which names `sides`."""
    reach, (first, last) = calibrated_contexts(profile, lanes), _contexts(record)
    if reach is not None and not reach[0] <= first <= last <= reach[1]:
        msg = (
            f"{sides[1]}: its texts have {first:,} to {last:,} cached tokens, and {sides[0]} was calibrated for "
            f"{reach[0]:,} to {reach[1]:,}: nothing is predicted beyond. Calibrate for these lengths, by `mirrorsd "
            f"calibrate` with the prompts that were recorded (--prompts) and --max-new-tokens {record.max_new_tokens}"
        )
        raise OutOfRangeError(msg)


def reach_in_words(profile: Profile, record: AcceptanceRecord, lanes: Collection[str]) -> str | None:
    """Return a warning that a calibration has seen only the lengths of a record's texts; None if nothing was."""
    if not any(lane.anchor is not None for lane in profile.lanes):
        return None
    reach, (first, last) = calibrated_contexts(profile, lanes), _contexts(record)
    lengths = "" if reach is None else f" with {reach[0]:,} to {reach[1]:,} cached tokens"
    return (
        f"The profile was calibrated on made-up text{lengths}: it has seen none of these prompts and answers, which "
        f"have {first:,} to {last:,}."
    )


def _contexts(record: AcceptanceRecord) -> tuple[int, int]:
    """Return the fewest and the most cached tokens at which a round of a recorded text may begin."""
    found = Replay(record).contexts(None)
    return found.start, found.stop - 1
