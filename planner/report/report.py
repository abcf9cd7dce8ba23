"""One self-contained HTML page: the verdict, predicted and measured times, and why. Opens offline, fetches nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml

from decoding.yaml_file import write_atomically
from hwprofiles.profile import Contention, LaneProfile
from planner.page_template import page_template
from planner.report.figures import acceptance, break_even, exit_layers, landscape, timelines
from planner.report.report_data import ReportData
from planner.report.table import calibration_rows, result_rows, scale_end_s, time_rows, used_parts
from planner.wording import (
    between,
    capital,
    counted,
    error_percent,
    factor,
    listing,
    milliseconds,
    percent,
    seconds,
    tokens_per_second,
)

NO_BREAK_SPACE = "\u00a0"
_ROW_INVARIANT: Final = {
    True: "tested: a result does not depend on the rows computed with it",
    False: "tested: a result depends on the rows computed with it, so close calls may fall otherwise than in plain "
    "decoding",
    None: "not tested whether a result depends on the rows computed with it",
}


def write_report(data: ReportData, path: Path) -> None:
    """Write the page atomically."""
    write_atomically(path, render_report(data))


def render_report(data: ReportData) -> str:
    """Return the page as text. `data` has at least one result."""
    shown = (capital, milliseconds, signed_percent, factor, interval, between, unbroken, counted)
    filters = {filter_.__name__: filter_ for filter_ in shown}
    search = data.plan.search
    return page_template(Path(__file__).with_name("template.html"), filters).render(
        data=data,
        notes=list(notes(data)),
        facts=facts(data),
        has_measured=bool(data.errors),
        has_anchors=bool(data.errors_at_anchor),
        has_speedups=any(result.speedup for result in data.results),
        are_prompts_alike=data.are_prompts_alike,
        num_candidates=f"{len(search.candidates):,}",
        profile_error=percent(data.plan.profile.relative_error),
        **_answer(data),
        **_tables(data),
        timelines=list(timelines(data)),
        prompt_name=data.plan.record.prompts[0].name,
        acceptance=acceptance(data.results),
        landscape=landscape(search),
        exit_layers=exit_layers(search),
        break_even=list(map(break_even, data.plan.sensitivity.sweeps)),
        winner_drafts=search.winner.schedule.traits.window != "none",
    )


def tiles(data: ReportData) -> Iterator[tuple[str, str]]:
    """Yield the large numbers on top, each with what it is: the answer, the speed that goes with it, and its error."""
    verdict = data.verdict
    if verdict.pays == "cannot_tell":
        yield "Cannot tell", f"whether speculation is faster than plain decoding, by what was {verdict.world}"
    elif verdict.speedup is not None:
        yield factor(verdict.speedup.value), f"the speed of plain decoding, {verdict.world}"
    found = next((one for one in data.results if one.candidate.schedule == verdict.schedule), None)
    speed_s = None if found is None else found.measured_s if verdict.world == "measured" else found.predicted_s
    if speed_s is not None:
        yield tokens_per_second(speed_s), f"{verdict.world}, with what is recommended"
    if not data.errors:
        expected = percent(data.plan.profile.relative_error)
        yield f"±{expected}", "expected of all predicted times together; nothing was run yet"
        return
    label = f"median error of the prediction over {counted(len(data.errors), 'schedule')}"
    if data.errors_at_anchor:
        label += f", as calibrated; {_median(data.errors_at_anchor)} at the speed of the anchors"
    yield _median(data.errors), label


def _median(errors: tuple[float, ...]) -> str:
    return error_percent(median(map(abs, errors)))


def _answer(data: ReportData) -> dict[str, Any]:
    """Return what stands first, all of it from the one verdict."""
    verdict, use = data.verdict, None
    if verdict.schedule is not None:
        settings = verdict.schedule.model_dump(mode="json", exclude_defaults=True)
        use = {
            "name": capital(str(verdict.recommended)),
            "command": data.command,
            "yaml": yaml.safe_dump(settings, sort_keys=False),
        }
    claim, colon, detail = verdict.headline.partition(": ")
    predicted = data.plan.verdict
    return {
        "claim": claim + colon,
        "detail": detail,
        "lines": (*verdict.lines[1:], *verdict.warnings),
        "tiles": list(tiles(data)),
        "use": use,
        "explained": verdict.explained,
        "background": () if data.measured is None else (*predicted.lines, *predicted.warnings, *predicted.explained),
    }


def _tables(data: ReportData) -> dict[str, Any]:
    stacked = time_rows(data)
    return {
        "results_heading": results_heading(data),
        "result_rows": result_rows(data),
        "scale_end": milliseconds(scale_end_s(data)),
        "time_rows": stacked,
        "time_keys": used_parts(stacked),
        "calibration_rows": calibration_rows(data.plan.profile),
    }


def unbroken(text: str) -> str:
    """No line break between a number and its unit."""
    return re.sub(r"(?<=\d) (?=(%|ms|s|min|tokens/s)\b|%)", NO_BREAK_SPACE, text)


def signed_percent(error: float) -> str:
    """Return an error with its sign, the typographic one."""
    return f"{error * 100:+.1f} %".replace("-", "\u2212")


def interval(speedup: tuple[float, float, float]) -> str:
    """Return the ends of a ratio's interval; nothing where it has none."""
    _, low, high = speedup
    return f"{factor(low).removesuffix('×')} to {factor(high)}" if low > 0 and isfinite(high) else ""


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
