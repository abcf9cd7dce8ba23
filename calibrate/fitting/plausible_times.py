"""Times that no machine can have: parts that came out as costing nothing."""

from __future__ import annotations

from decoding.errors import ProfileError
from hwprofiles.profile import Profile


def require_times(profile: Profile) -> None:
    """Raise `ProfileError` for a part that costs nothing: it was noise that was timed."""
    for lane in profile.lanes:
        parts = {"layer": lane.layer, "lm_head": lane.lm_head, "draft_step": lane.draft_step}
        parts |= {"draft_step_features": lane.draft_step_features, "draft_start": lane.draft_start}
        parts |= {f"step of {k}": v for k, v in lane.heads.items()}
        for name, table in parts.items():
            if table is not None and min(map(min, table.seconds)) <= 0:
                msg = (
                    f"lane {lane.name!r}: {name} came out as costing nothing, so it was noise that was timed; "
                    "calibrate again, with more time or while nothing else runs"
                )
                raise ProfileError(msg)
