"""The rows of the page's tables, the heading, the facts about the calibration, and the notes."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

from hwprofiles.lane_profile import LaneProfile
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import Contention, Profile
from planner.report.curves import KIND_COLOUR
from planner.report.report_data import ReportData, ScheduleResult
from planner.report.timeline import Key
from planner.search.search import SearchResult
from planner.wording import (
    PART,
    capital,
    counted,
    error_percent,
    factor,
    in_ms,
    kind_of,
    listing,
    milliseconds,
    percent,
    seconds,
)

PART_COLOUR: Final = {
    "target_verify": "var(--verify)",
    "target_prefix": "var(--prefix)",
    "target_suffix": "var(--suffix)",
    "draft": "var(--rollout)",
    "fallback": "var(--miss)",
    "channel": "var(--channel)",
    "contention": "var(--contention)",
    "overhead": "var(--overhead)",
}


class ResultRow(NamedTuple):
    """One schedule; `badges` say what it is best at, `parts` are (label, colour, seconds) of its predicted time."""

    name: str
    colour: str
    badges: tuple[str, ...]
    is_recommended: bool
    result: ScheduleResult
    parts: list[tuple[str, str, float]]


def result_rows(data: ReportData) -> list[ResultRow]:
    """Return one row per schedule, in the given order."""
    rows = []
    for name, result in zip(data.names, data.results, strict=True):
        is_recommended = result.candidate.schedule == data.verdict.schedule
        badges = ("recommended",) * is_recommended if data.measured is None else data.measured.badges.get(name, ())
        times_s = result.candidate.seconds_per_token
        rows.append(
            ResultRow(
                name=capital(name),
                colour=f"var({KIND_COLOUR[kind_of(result.candidate.schedule)]})",
                badges=badges,
                is_recommended=is_recommended,
                result=result,
                parts=[(label, PART_COLOUR[part], times_s[part]) for part, label in PART.items() if times_s.get(part)],
            )
        )
    return rows


def marks_end_s(data: ReportData) -> float:
    """Return the largest time (seconds per token) on the scale of the rows' marks, which starts at zero."""
    return 1.04 * max(max(row.candidate.prediction.tpot_s_high, row.measured_s) for row in data.results)


def bars_end_s(data: ReportData) -> float:
    """Return the largest time on the scale of the stacked bars: the slowest one, predicted or measured."""
    return max(max(result.predicted_s, result.measured_s) for result in data.results)


def used_parts(rows: list[ResultRow], end_s: float) -> list[Key]:
    """Return the legend of the stacked bars: every part that is visible in at least one bar."""
    shown = {label for row in rows for label, _, time_s in row.parts if time_s >= 0.002 * end_s}
    return [Key(PART_COLOUR[part], label) for part, label in PART.items() if label in shown]


def exit_layers(result: SearchResult) -> list[tuple[str, ...]]:
    """Return a table of mirror's best ms per token by exit layer and window, heading first; empty for one layer."""
    best: dict[tuple[int, int], str] = {}
    for one in result.candidates:  # the fastest first
        if one.schedule.exit_layer is not None:
            best.setdefault((one.schedule.exit_layer, one.schedule.num_speculative_tokens), in_ms(one.tpot_s))
    layers, windows = (sorted({*own}) for own in zip(*best, strict=True)) if best else ([], [])
    if len(layers) < 2:
        return []
    rows = [(f"layer {layer}", *(best.get((layer, window), "") for window in windows)) for layer in layers]
    return [("exit after", *(f"{window} drafted" for window in windows)), *rows]


def calibration_rows(profile: Profile) -> list[tuple[str, ...]]:
    """Return a row per measured part of every lane, its anchor first; times are those at the shortest context."""
    rows: list[tuple[str, ...]] = []
    for lane in profile.lanes:
        if lane.anchor is not None:
            time, error = milliseconds(lane.anchor.seconds), f"±{percent(lane.anchor.relative_error)}"
            rows.append((lane.name, "anchor: one token, to check the speed", "1", time, time, error))
        for part, table in named_tables(lane):
            times = milliseconds(table.seconds[0][0]), milliseconds(table.seconds[-1][0])
            count = f"{table.rows[0]} to {table.rows[-1]}"
            rows.append((lane.name, part, count, *times, f"±{percent(table.relative_error)}"))
    return rows


def named_tables(lane: LaneProfile) -> Iterator[tuple[str, LatencyTable]]:
    """Yield the tables of a lane with the names of their parts."""
    named = {
        "one target layer": lane.layer,
        "output head": lane.lm_head,
        **{f"exit after layer {layer}": table for layer, table in sorted(lane.exit.items())},
        "draft step": lane.draft_step,
        "draft step, exit features": lane.draft_step_features,
        "first step of branches, exit features": lane.draft_start,
        "streams of the draft": lane.draft_streams,
        "rows that the draft reads again": lane.draft_reads,
        **{f"step of {name}": table for name, table in sorted(lane.heads.items())},
        **{f"streams of {name}": table for name, table in sorted(lane.streams.items())},
        "reading a prompt, target": lane.prefill,
        "reading a prompt, draft": lane.draft_prefill,
        **{f"reading a prompt, {name}": table for name, table in sorted(lane.head_prefill.items())},
    }
    yield from ((part, table) for part, table in named.items() if table is not None)


_ROW_INVARIANT: Final = {
    True: "tested: a row's result does not depend on the other rows of the pass",
    False: "tested: a row's result depends on the other rows of the pass, so near ties may differ from plain decoding",
    None: "not tested whether a row's result depends on the other rows of the pass",
}


def results_heading(results: Sequence[ScheduleResult]) -> str:
    """Return a sentence on how far off the predictions in the table are."""
    sizes = [abs(result.error) for result in results]
    return f"Error of predictions: {error_percent(median(sizes))} in the median, {error_percent(max(sizes))} at most"


def facts(data: ReportData) -> list[tuple[str, str]]:
    """Return (name, value) facts on the machine, its calibration and the acceptance record."""
    profile, record = data.plan.profile, data.plan.record
    num_tokens = sum(len(prompt.text) for prompt in record.prompts)
    texts = f"{counted(len(record.prompts), 'prompt')}, {counted(num_tokens, 'token')} of text"
    return [
        *(
            (name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
            for name, value in profile.host.items()
        ),
        *((f"lane {lane.name}", _lane(lane)) for lane in profile.lanes),
        *(("both lanes at once", _together(pair)) for pair in profile.contention),
        ("acceptance record", texts),
        ("batch invariance", _ROW_INVARIANT[profile.is_row_invariant]),
        ("time to calibrate", seconds(profile.calibration_s)),
    ]


def notes(data: ReportData) -> Iterator[str]:
    """Yield notes on how the numbers were obtained, and how far to trust them."""
    record, dtype = data.plan.record, data.plan.profile.dtype
    how = f"Sampling at temperature {record.temperature:g}" if record.temperature else "Greedy decoding (temperature 0)"
    yield (
        f"{how} in {dtype}, {counted(len(record.prompts), 'prompt')}, up to "
        f"{counted(record.max_new_tokens, 'new token')} each; acceptance was recorded by {record.backend} in "
        f"{record.dtype}."
    )
    yield from dict.fromkeys(
        one for one in (*data.footnotes, *data.plan.profile.notes) if one not in (data.warning or "")
    )


def _lane(lane: LaneProfile) -> str:
    cores = f" on cores {listing(list(map(str, lane.cores)))}" if lane.cores else ""
    parts = [f"{lane.device}{cores}", f"{milliseconds(lane.dispatch_s)} to start and end an operation"]
    parts += [f"a common error of all its times of ±{percent(lane.relative_error)}"] * (lane.relative_error > 0)
    return "; ".join(parts)


def _together(pair: Contention) -> str:
    slower = [f"{lane} takes {factor(slowdown)}" for lane, slowdown in zip(pair.lanes, pair.slowdown, strict=True)]
    return f"{listing(slower)} as long as alone while both work"
