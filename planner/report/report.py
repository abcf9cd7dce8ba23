"""One self-contained HTML page: the verdict, predicted and measured times, and why. Opens offline, fetches nothing."""

import json
import re
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from planner.page_template import rendered
from planner.paired_ratio import Ratio
from planner.report.curves import acceptance, landscape, longest_windows, sweep_picture
from planner.report.report_data import ReportData, ScheduleResult
from planner.report.table import (
    bars_end_s,
    calibration_rows,
    exit_layers,
    facts,
    marks_end_s,
    notes,
    result_rows,
    results_heading,
    used_parts,
)
from planner.report.timeline import Figure, Key, common_end_s, keys, timeline
from planner.what_if.mixed_record import whose_tokens
from planner.wording import (
    Kind,
    capital,
    counted,
    error_percent,
    factor,
    percent,
    tokens_per_second,
)

NO_BREAK_SPACE = "\u00a0"
SWEEP_TITLE = {
    "acceptance": "If the draft were right more or less often",
    "draft_speed": "If the draft were faster or slower",
}

_BY_PREDICTION: Final = "This is by predicted times: plain decoding and a schedule that drafts were not both run."


def render_report(data: ReportData) -> str:
    """Return the page as text. `data` has at least one result."""
    return rendered(
        Path(__file__).with_name("template.html"),
        figure_json,
        interval,
        unbroken,
        data=data,
        plotly_js=Markup(get_plotlyjs()),  # noqa: S704
        notes=list(notes(data)),
        facts=facts(data),
        has_ratios=any(result.ratio for result in data.results),
        are_prompts_alike=data.are_prompts_alike,
        num_candidates=f"{len(data.plan.search.candidates):,}",
        profile_error=percent(data.plan.profile.common_error),
        **_answer(data),
        **_tables(data),
        **_figures(data),
    )


def tiles(data: ReportData) -> Iterator[tuple[str, str]]:
    """Yield (number, meaning) of the large numbers on top: the speed-up, the speed, and the error of the prediction."""
    verdict = data.verdict
    if verdict.pays == "cannot_tell":
        yield "Cannot tell", f"whether speculation is faster than plain decoding, by {verdict.world} times"
    elif verdict.speedup is not None:
        yield factor(verdict.speedup.value), f"the speed of plain decoding, {verdict.world}"
    found = next((one for one in data.results if one.candidate.schedule == verdict.schedule), None)
    if found is not None:
        yield tokens_per_second(found.measured_s), "measured, with the recommended schedule"
    error, corrected = (
        error_percent(median(abs(getattr(one, name)) for one in data.results)) for name in ("error", "error_at_anchor")
    )
    label = f"median error of the prediction over {counted(len(data.results), 'schedule')}"
    yield error, f"{label}, as measured; {corrected} corrected"


def _answer(data: ReportData) -> dict[str, Any]:
    """Return the values of the page's first part, all from the same verdict."""
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
        "lines": (*verdict.lines[1:], *verdict.warnings, *([] if data.measured else [_BY_PREDICTION])),
        "tiles": list(tiles(data)),
        "use": use,
        "explained": verdict.explained,
        "background": () if data.measured is None else (*predicted.lines, *predicted.warnings, *predicted.explained),
    }


def _tables(data: ReportData) -> dict[str, Any]:
    rows, end_s = result_rows(data), bars_end_s(data)
    return {
        "results_heading": results_heading(data.results),
        "rows": rows,
        "marks_end_s": marks_end_s(data),
        "bars_end_s": end_s,
        "time_keys": [*used_parts(rows, end_s), Key("var(--ink)", "measured total", "tick")],
        "calibration_rows": calibration_rows(data.plan.profile),
    }


def _figures(data: ReportData) -> dict[str, Any]:
    drawn = _drawn(data)
    end_s = common_end_s(drawn)
    return {
        "timelines": [
            (capital(result.name), timeline(result, f"timeline-{index}", end_s)) for index, result in enumerate(drawn)
        ],
        "timeline_keys": keys(drawn),
        "prompt_name": data.plan.record.prompts[0].name,
        "acceptance": acceptance(longest_windows(data.results)),
        "chosen_drafts": data.plan.recommended.schedule.num_rows > 1,
        "landscape": landscape(data.plan.search, data.plan.recommended),
        "exit_layers": exit_layers(data.plan.search),
        "break_even": [
            (SWEEP_TITLE[sweep.quantity], sweep_picture(sweep, whose_tokens(data.plan.record)))
            for sweep in data.plan.sensitivity.sweeps
        ],
    }


def _drawn(data: ReportData) -> list[ScheduleResult]:
    """Return the results to draw timelines of: the fastest of every kind that drafts, and plain if only one drafts."""
    kinds: tuple[Kind, ...] = ("mirror", "tree", "synchronous", "lookup", "plain")
    best = [result for result in map(data.fastest, kinds) if result is not None]
    return [result for place, result in enumerate(best) if place < 2 or result.candidate.schedule.num_rows > 1]


def unbroken(text: str) -> str:
    """Return the text with no-break spaces between numbers and units."""
    return re.sub(r"(?<=\d) (?=(%|ms|s|min|tokens/s)\b|%)", NO_BREAK_SPACE, text)


def interval(ratio: Ratio) -> str:
    """Return the ends of a ratio's interval; an empty text if it has none."""
    low, high = ratio.low, ratio.high
    return f"{factor(low).removesuffix('×')} to {factor(high)}" if low > 0 and isfinite(high) else ""


def figure_json(figure: Figure) -> Markup:
    """Return a figure as JSON that cannot close the script element around it."""
    content = json.dumps({"data": figure.data, "layout": figure.layout}, separators=(",", ":"), allow_nan=False)
    return Markup(content.replace("<", "\\u003c"))  # noqa: S704
