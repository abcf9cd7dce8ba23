"""The sentences around the figures: tiles, facts of the calibration, and the fine print."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from hwprofiles.profile import Contention
from planner.report.report_data import ReportData, ScheduleResult
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


class Tile(NamedTuple):
    """A number worth a large font."""

    value: str
    label: str


def tiles(data: ReportData) -> Iterator[Tile]:
    """Speed, speed-up, trust, and what it cost to know."""
    winner = data.plan.search.winner
    own = next((result for result in data.results if result.candidate.schedule == winner.schedule), None)
    own_s, word = _time(own, winner.tpot_s)
    yield Tile(tokens_per_second(own_s), f"{word}, {schedule_name(winner.schedule, winner.placement)}")
    plain = data.plan.search.best(method="autoregressive")
    if plain is not None and plain.schedule != winner.schedule:
        same = next((result for result in data.results if result.candidate.schedule == plain.schedule), None)
        plain_s, plain_word = _time(same, plain.tpot_s)
        both = word if word == plain_word else f"{word} over {plain_word}"
        yield Tile(factor(plain_s / own_s), f"{both}, over plain decoding at {tokens_per_second(plain_s)}")
    if data.errors:
        middle = median(abs(error) for error in data.errors)
        yield Tile(
            error_percent(middle), f"median error of the prediction over {counted(len(data.errors), 'schedule')}"
        )
    else:
        yield Tile(
            f"±{percent(data.plan.profile.relative_error)}", "expected error of the prediction; nothing was run yet"
        )
    yield Tile(seconds(data.plan.profile.calibration_s), "to calibrate this machine")


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
    known = [(str(name), str(value)) for name, value in profile.host.items()]
    known += [
        (f"lane {lane.name}", f"{lane.device}{_cores(lane.cores)}, dispatch {milliseconds(lane.dispatch_s)}")
        for lane in profile.lanes
    ]
    known += [("together", _together(pair)) for pair in profile.contention]
    known.append(("acceptance", f"{counted(len(record.prompts), 'prompt')}, {counted(num_tokens, 'token')} of text"))
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
        "The interval of a prediction (95 %) comes from held-back checks of the calibration, the spread of its parts "
        "and the choice of prompts. Schedules share the prompts, so two of them are compared prompt by prompt; "
        "where the interval of their ratio reaches one, there is no measurable difference."
    )
    run = [result for result in data.results if result.measured]
    if run:
        yield _divergences(run)
        repeats = sorted({len(result.measured) for result in run})
        times = counted(repeats[0], "time") if len(repeats) == 1 else f"{repeats[0]} to {repeats[-1]} times"
        yield f"Each schedule was run {times}; the measured value is the median, the range is from best to worst."
    not_run = len(data.results) - len(run)
    if not_run:
        yield f"{counted(not_run, 'schedule')} of the table {'was' if not_run == 1 else 'were'} not run."
    yield (
        "Uneven budgets of branches were fitted to the same prompts on which they are judged. The what-if curves "
        "ask a shortlist: the best schedule of each method, placement and number of drafted tokens."
    )
    yield from data.footnotes


def _divergences(run: list[ScheduleResult]) -> str:
    num_divergent = sum(result.num_divergent for result in run)
    total = counted(sum(result.num_measured for result in run), "measured sequence")
    if not num_divergent:
        return f"All {total} went through exactly the simulated rounds: same tokens, same hits, same misses."
    return (
        f"{num_divergent} of {total} left the simulated rounds at some point: their text or their hits differ from "
        "the record. Their times are counted all the same."
    )


def _time(result: ScheduleResult | None, predicted_s: float) -> tuple[float, str]:
    if result is not None and result.measured_s is not None:
        return result.measured_s, "measured"
    return predicted_s, "predicted"


def _together(pair: Contention) -> str:
    slower = [f"{lane} takes {factor(slowdown)}" for lane, slowdown in zip(pair.lanes, pair.slowdown, strict=True)]
    return f"{listing(slower)} its time alone while both work"


def _cores(cores: tuple[int, ...]) -> str:
    if not cores:
        return ""
    return f", core{'' if len(cores) == 1 else 's'} {', '.join(str(core) for core in cores)}"
