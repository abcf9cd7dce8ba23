"""Whether a profile and a record are of the same models: what one predicts of the other is true only then."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from decoding.errors import ConfigError
from decoding.record import AcceptanceRecord
from hwprofiles.profile import Profile

_FACTS: Final = ("target", "drafter", "dtype")


def require_same_models(
    profile: Profile,
    record: AcceptanceRecord,
    *,
    replayed: bool = False,
    sides: tuple[object, object] = ("the profile", "the record"),
) -> str | None:
    """Refuse a profile and a record of different targets, drafters or types of weights.

    Args:
        profile: how long the models take.
        record: what they accept.
        replayed: whether the acceptance of another pair is asked for.
        sides: what messages call the two, such as their files.

    Returns:
        None if they are of the same models; else, if `replayed`, the sentence that results have to carry.

    Raises:
        ConfigError: they differ, and `replayed` is false.
    """
    differing = [name for name in _FACTS if not _is_same(getattr(profile, name), getattr(record, name))]
    if not differing:
        return None
    ours, theirs = (", ".join(f"{name} {getattr(side, name)}" for name in differing) for side in (profile, record))
    if replayed:
        return f"Acceptance is replayed from another pair: recorded with {theirs}, while times are of {ours}."
    msg = (
        f"{sides[0]} was measured with {ours}, {sides[1]} recorded with {theirs}. Calibrate and record with the same "
        "models; search and simulate replay the acceptance of another pair with --replayed-acceptance (replayed=True)"
    )
    raise ConfigError(msg)


def _is_same(ours: str | None, theirs: str | None) -> bool:
    """Whether two names are of one model: a folder can be named in several ways."""
    if ours is None or theirs is None:
        return ours is theirs
    return Path(ours).expanduser().resolve() == Path(theirs).expanduser().resolve()
