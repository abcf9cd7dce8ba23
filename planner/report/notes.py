"""The sentences around the figures: tiles, facts of the calibration, and the fine print."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any, Final

from hwprofiles.profile import Contention
from planner.report.report_data import ReportData
from planner.search.search import Candidate
from planner.wording import (
    counted,
    error_percent,
    factor,
    listing,
    milliseconds,
    percent,
    schedule_name,
    seconds,
    tokens_per_second,
)

HOST: Final = {"cpu_model": "processor", "memory_gb": "memory in GB"}
"""What a profile's host entries are called on the page, where not by their key."""


def tiles(data: ReportData) -> Iterator[tuple[str, str]]:
    """(number, what it is) in large type: speed, speed-up, trust, and what it cost to know."""
    winner, plain = data.plan.search.winner, data.plan.search.best(kind="plain")
    own_s, word = _time(data, winner)
    yield tokens_per_second(own_s), f"{word}, {schedule_name(winner.schedule, winner.placement)}"
    if plain is not None and winner.schedule.traits.window != "none":
        plain_s, plain_word = min(_plain_times(data), default=_time(data, plain))
        both = word if word == plain_word else f"{word} over {plain_word}"
        yield factor(plain_s / own_s), f"{both}, over the fastest plain decoding at {tokens_per_second(plain_s)}"
    if data.errors:
        middle = error_percent(median(abs(error) for error in data.errors))
        yield middle, f"median error of the prediction over {counted(len(data.errors), 'schedule')}"
    else:
        expected = percent(data.plan.profile.relative_error)
        yield f"±{expected}", "expected error of the prediction; nothing was run yet"
    yield seconds(data.plan.profile.calibration_s), "to calibrate this machine"


def results_heading(data: ReportData) -> str:
    """The finding of the table."""
    if not data.errors:
        return "What is predicted"
    sizes = sorted(abs(error) for error in data.errors)
    if len(sizes) == 1:
        return f"The prediction is off by {error_percent(sizes[0])}"
    return f"Predictions are off by {error_percent(median(sizes))} in the median, {error_percent(sizes[-1])} at most"


def facts(data: ReportData) -> list[tuple[str, str]]:
    """What was calibrated and recorded, on what."""
    profile, record = data.plan.profile, data.plan.record
    num_tokens = sum(len(prompt.text) for prompt in record.prompts)
    known = [(HOST.get(str(name), str(name)), _plainly(value)) for name, value in profile.host.items()]
    known += [
        (f"lane {lane.name}", f"{lane.device}{_cores(lane.cores)}, dispatch {milliseconds(lane.dispatch_s)}")
        for lane in profile.lanes
    ]
    known += [("both lanes at once", _together(pair)) for pair in profile.contention]
    known.append(
        ("acceptance record", f"{counted(len(record.prompts), 'prompt')}, {counted(num_tokens, 'token')} of text")
    )
    known.append(("calibration", seconds(profile.calibration_s)))
    return known


def notes(data: ReportData) -> Iterator[str]:
    """What one has to know to trust the numbers, or not to."""
    record, dtype = data.plan.record, data.plan.profile.dtype
    yield (
        f"Greedy decoding (temperature 0) in {dtype}, {counted(len(record.prompts), 'prompt')}, up to "
        f"{counted(record.max_new_tokens, 'new token')} each; acceptance was recorded in {record.dtype}."
    )
    yield (
        "Times per token are all decoding time over all committed tokens, of all prompts together; prefill and "
        "loading are left out."
    )
    yield (
        "The interval of a prediction (90 %) comes from what the numbers of the calibration may be off by. What two "
        "schedules share of that cancels in the ratio of their times; where the interval of the ratio, the choice of "
        "prompts counted in, reaches one, the predictions cannot tell which is faster."
    )
    run = [result for result in data.results if result.measured]
    if run:
        yield _repeats(sorted({len(result.measured) for result in run}))
    not_run = len(data.results) - len(run)
    if not_run:
        yield f"{counted(not_run, 'schedule')} of the table {'was' if not_run == 1 else 'were'} not run."
    yield (
        "Uneven budgets of branches were fitted to the same prompts on which they are judged. The what-if curves "
        'ask a shortlist: the best schedule of each method, placement and number of drafted tokens. "Tokens the draft '
        'gets right" are those of the draft model without exit features; whatever else drafts is made better or worse '
        "by the same share."
    )
    yield from data.footnotes


def _repeats(counts: list[int]) -> str:
    if counts == [1]:
        return "Each schedule was run once."
    times = f"{counts[0]} times" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} times"
    return f"Each schedule was run {times}; the measured value is the median, the range is from best to worst."


def _time(data: ReportData, candidate: Candidate) -> tuple[float, str]:
    """(time per token, the world it is from): measured if the schedule was run."""
    for result in data.results:
        if result.candidate.schedule == candidate.schedule and result.measured_s is not None:
            return result.measured_s, "measured"
    return candidate.tpot_s, "predicted"


def _plain_times(data: ReportData) -> list[tuple[float, str]]:
    """Of plain decoding wherever it was run."""
    plain = [result for result in data.results if result.candidate.schedule.traits.window == "none"]
    return [(result.measured_s, "measured") for result in plain if result.measured_s is not None]


def _plainly(value: Any) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)


def _together(pair: Contention) -> str:
    slower = [f"{lane} takes {factor(slowdown)}" for lane, slowdown in zip(pair.lanes, pair.slowdown, strict=True)]
    return f"{listing(slower)} its time alone while both work"


def _cores(cores: tuple[int, ...]) -> str:
    if not cores:
        return ""
    return f", core{'' if len(cores) == 1 else 's'} {', '.join(str(core) for core in cores)}"
