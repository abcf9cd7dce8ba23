"""What stands around the figures: heading of the results, facts of the calibration, and the fine print."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any, Final

from hwprofiles.profile import Contention, LaneProfile
from planner.report.report_data import ReportData
from planner.wording import counted, error_percent, factor, listing, milliseconds, percent, seconds

_ROW_INVARIANT: Final = {
    True: "tested: a result does not depend on the rows computed with it",
    False: "tested: a result depends on the rows computed with it, so close calls may fall otherwise than in plain "
    "decoding",
    None: "not tested whether a result depends on the rows computed with it",
}


def results_heading(data: ReportData) -> str:
    """Return the finding of the table."""
    if not data.errors:
        return "What is predicted"
    sizes = [abs(error) for error in data.errors]
    return f"Predictions are off by {error_percent(median(sizes))} in the median, {error_percent(max(sizes))} at most"


def facts(data: ReportData) -> list[tuple[str, str]]:
    """Return what was calibrated and recorded, on what."""
    profile, record = data.plan.profile, data.plan.record
    num_tokens = sum(len(prompt.text) for prompt in record.prompts)
    texts = f"{counted(len(record.prompts), 'prompt')}, {counted(num_tokens, 'token')} of text"
    return [
        *((name.replace("_", " "), _plainly(value)) for name, value in profile.host.items()),
        *((f"lane {lane.name}", _lane(lane)) for lane in profile.lanes),
        *(("both lanes at once", _together(pair)) for pair in profile.contention),
        ("acceptance record", texts),
        ("rows checked together", _ROW_INVARIANT[profile.is_row_invariant]),
        ("time to calibrate", seconds(profile.calibration_s)),
    ]


def notes(data: ReportData) -> Iterator[str]:
    """Yield what one has to know to trust the numbers, or not to."""
    record, dtype = data.plan.record, data.plan.profile.dtype
    how = f"Sampling at temperature {record.temperature:g}" if record.temperature else "Greedy decoding (temperature 0)"
    yield (
        f"{how} in {dtype}, {counted(len(record.prompts), 'prompt')}, up to "
        f"{counted(record.max_new_tokens, 'new token')} each; acceptance was recorded by {record.backend} in "
        f"{record.dtype}."
    )
    not_run = sum(not result.measured for result in data.results)
    if not_run:
        yield f"{counted(not_run, 'schedule')} of the table {'was' if not_run == 1 else 'were'} not run."
    yield from dict.fromkeys(
        one for one in (*data.footnotes, *data.plan.profile.notes) if one not in (data.warning or "")
    )


def _lane(lane: LaneProfile) -> str:
    cores = f" on cores {listing(list(map(str, lane.cores)))}" if lane.cores else ""
    parts = [f"{lane.device}{cores}", f"{milliseconds(lane.dispatch_s)} to start and end an operation"]
    parts += [f"all its times ±{percent(lane.relative_error)} together"] * (lane.relative_error > 0)
    return "; ".join(parts)


def _plainly(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _together(pair: Contention) -> str:
    slower = [f"{lane} takes {factor(slowdown)}" for lane, slowdown in zip(pair.lanes, pair.slowdown, strict=True)]
    return f"{listing(slower)} its time alone while both work"
