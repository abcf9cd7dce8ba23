"""Timelines of lanes, the simulated one above the measured one.

Figures are plain Plotly dictionaries; their colours are names in the page's style sheet.
"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final, NamedTuple

from decoding.schedule import Schedule
from decoding.trace import Span, Trace, Work
from planner.report.report_data import ScheduleResult
from planner.wording import counted, milliseconds

NUM_ROUNDS: Final = 10
"""Timelines end when the fastest schedule has simulated this many rounds."""

INK: Final = "var(--ink)"
SOFT: Final = "var(--soft)"
LINE: Final = "var(--line)"
PAPER: Final = "var(--paper)"


class Figure(NamedTuple):
    """One Plotly figure; its name is unique on the page, and `alt` describes it for screen readers.

    Colours may be `var(--name)`; the page's script resolves them, for light and for dark mode.
    """

    name: str
    alt: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]


class Key(NamedTuple):
    """A legend entry: a colour and its meaning; `style` is a class of the style sheet."""

    colour: str
    label: str
    style: str = "fill"


TARGET_WORK: Final = (Work.VERIFY, Work.PREFIX, Work.SUFFIX, Work.STREAM)
KEY: Final = {
    Work.VERIFY: Key("var(--verify)", "target verifies"),
    Work.PREFIX: Key("var(--prefix)", "target up to the exit"),
    Work.SUFFIX: Key("var(--suffix)", "target after the exit"),
    Work.STREAM: Key("var(--stream)", "target verifies and drafts"),
    Work.ROLLOUT_STEP: Key("var(--rollout)", "draft of one window"),
    Work.BRANCH_STEP: Key("var(--branch)", "draft of all branches"),
    Work.FINISH_STEP: Key("var(--finish)", "draft of the branch that hit"),
}
ABOVE_LANES: Final = 1.0
"""Room above the lanes of a timeline for its title and the rounds, in heights of a lane."""

BELOW_LANES: Final = 0.4
LABELS_WIDTH_PX: Final = 140
"""Room for `on openvino:CPU@0`: the same in all timelines, so that their time axes lie exactly above each other."""


class Piece(NamedTuple):
    """A part of a span; `exposed` marks drafting that is not hidden by work of the target."""

    span: Span
    start_s: float
    end_s: float
    exposed: bool


def common_end_s(results: Sequence[ScheduleResult]) -> float:
    """Return where all timelines end, in seconds: when the fastest schedule has simulated `NUM_ROUNDS` rounds."""
    ends = []
    for result in results:
        trace = result.simulated[0]
        ends.append(trace.rounds[:NUM_ROUNDS][-1].end_s if trace.rounds else trace.decode_s)
    return min(ends, default=0.0)


def timeline(result: ScheduleResult, name: str, end_s: float) -> Figure:
    """Return the first prompt of `result`, from the start of decoding to `end_s`."""
    schedule = result.candidate.schedule
    worlds = [("Simulated", result.simulated[0]), ("Measured", result.measured[0])]
    lanes = lanes_of(schedule)
    block = ABOVE_LANES + len(lanes) + BELOW_LANES
    height = block * len(worlds)
    title_of_x = {"text": "milliseconds since decoding started", "standoff": 10, "font": {"size": 13, "color": SOFT}}
    data, labels, ticks, tick_names = [], [], [], []
    for index, (title, trace) in enumerate(worlds):
        top = height - index * block
        rows = {lane: top - ABOVE_LANES - 0.5 - place for place, lane in enumerate(lanes)}
        data += list(_bars(pieces(trace, schedule, end_s), rows))
        data += list(_round_marks(trace, top - 0.75, end_s))
        labels.append({"text": f"<b>{title}</b>", "x": 0, "y": top - 0.25, "showarrow": False, "xanchor": "left"})
        ticks += list(rows.values())
        tick_names += [f"{_role(schedule, lane)}<br>on {escape(lane, quote=False)}" for lane in lanes]
    return Figure(
        name=name,
        alt=f"Lanes over time, simulated and measured: {result.name}",
        data=data,
        layout={
            "height": 64 + round(38 * height),
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
            "margin": {"l": LABELS_WIDTH_PX, "r": 16, "t": 4, "b": 48},
            "showlegend": False,
            "dragmode": False,
            "hoverlabel": {"bgcolor": PAPER, "bordercolor": SOFT, "font": {"color": INK}},
            "barmode": "overlay",
            "annotations": labels,
            "xaxis": _axis([0, end_s * 1e3], title=title_of_x, automargin=True),
            "yaxis": _axis([0, height], tickvals=ticks, ticktext=tick_names, showgrid=False),
        },
    )


def _axis(ends: list[float], **settings: Any) -> dict[str, Any]:
    """Return an axis with a thin grid and no frame."""
    quiet = {"ticklabelstandoff": 4, "gridcolor": LINE, "zeroline": False, "fixedrange": True, "ticks": ""}
    return quiet | {"range": ends} | settings


def _scatter(mode: str, x: Sequence[float], y: float, **settings: Any) -> dict[str, Any]:
    """Return a Plotly trace of markers or text at one height, with hover texts."""
    points = {"type": "scatter", "mode": mode, "x": x, "y": [y] * len(x)}
    return points | {"hoverinfo": "text", "cliponaxis": False} | settings


def keys(results: Sequence[ScheduleResult]) -> list[Key]:
    """Return the legend of all timelines together."""
    used = {span.work for result in results for span in result.simulated[0].spans}
    found = [key for work, key in KEY.items() if work in used]
    if used - {*TARGET_WORK, Work.TRANSFER}:
        found.append(Key(PAPER, "hatched: the target waits for it", "hatched"))
    if any(entry.hit is not None for result in results for entry in result.simulated[0].rounds):
        found += [Key("var(--hit)", "hit: the next window is ready", "dot"), Key("var(--miss)", "miss", "cross")]
    return found


def lanes_of(schedule: Schedule) -> list[str]:
    """Return the lanes that work, the target's first."""
    return list(dict.fromkeys(lane for lane in (schedule.target_lane, schedule.draft_lane) if lane is not None))


def _role(schedule: Schedule, lane: str) -> str:
    if schedule.is_pooled:
        return "target" if schedule.traits.finds_text else "both models"
    return "target" if lane == schedule.target_lane else "draft"


def pieces(trace: Trace, schedule: Schedule, end_s: float) -> Iterator[Piece]:
    """Yield spans up to `end_s`; spans of the draft are cut where the target starts or stops working."""
    busy = sorted(
        (span.start_s, span.end_s)
        for span in trace.spans
        if span.lane == schedule.target_lane and span.work in TARGET_WORK
    )
    for span in trace.spans:
        if span.work not in KEY or span.start_s >= end_s:
            continue
        stop_s = min(span.end_s, end_s)
        if span.work in TARGET_WORK:
            yield Piece(span, span.start_s, stop_s, exposed=False)
        else:
            yield from _cut(span, stop_s, busy)


def _cut(span: Span, stop_s: float, busy: list[tuple[float, float]]) -> Iterator[Piece]:
    now_s = span.start_s
    for start_s, end_s in busy:
        if end_s <= now_s or start_s >= stop_s:
            continue
        if start_s > now_s:
            yield Piece(span, now_s, start_s, exposed=True)
        now_s = min(end_s, stop_s)
        yield Piece(span, max(span.start_s, start_s), now_s, exposed=False)
    if now_s < stop_s:
        yield Piece(span, now_s, stop_s, exposed=True)


def _bars(shown: Iterator[Piece], rows: dict[str, float]) -> Iterator[dict[str, Any]]:
    groups: dict[tuple[Work, bool], list[Piece]] = {}
    for piece in shown:
        groups.setdefault((piece.span.work, piece.exposed), []).append(piece)
    for (work, exposed), group in groups.items():
        pattern = {"shape": "/", "size": 5, "solidity": 0.35, "fgcolor": PAPER, "fillmode": "overlay"}
        yield {
            "type": "bar",
            "orientation": "h",
            "y": [rows[piece.span.lane] for piece in group],
            "base": [piece.start_s * 1e3 for piece in group],
            "x": [(piece.end_s - piece.start_s) * 1e3 for piece in group],
            "width": 0.82,
            "marker": {"color": KEY[work].colour, "line": {"color": PAPER, "width": 0.6}}
            | ({"pattern": pattern} if exposed else {}),
            "customdata": [
                f"{KEY[work].label}<br>{milliseconds(span.end_s - span.start_s)}, {counted(span.rows, 'row')}, "
                f"round {span.round + 1}"
                for span in (piece.span for piece in group)
            ],
            "hovertemplate": "%{customdata}<extra></extra>",
        }


def _round_marks(trace: Trace, row: float, end_s: float) -> Iterator[dict[str, Any]]:
    rounds = [(index, entry) for index, entry in enumerate(trace.rounds, 1) if entry.end_s <= end_s * 1.0001]
    yield _scatter(
        "text",
        [(entry.start_s + entry.end_s) / 2 * 1e3 for _, entry in rounds],
        row,
        text=[f"+{entry.num_committed}" for _, entry in rounds],
        textfont={"size": 12, "color": INK},
        hovertext=[
            f"round {index}: {entry.num_accepted} of {entry.num_drafted} drafted tokens accepted"
            for index, entry in rounds
        ],
    )
    for hit, symbol, colour in ((True, "circle", "var(--hit)"), (False, "x", "var(--miss)")):
        ends = [entry.end_s * 1e3 for _, entry in rounds if entry.hit is hit]
        if ends:
            marker = {"symbol": symbol, "size": 9, "color": colour, "line": {"width": 0, "color": LINE}}
            yield _scatter("markers", ends, row, marker=marker, hovertext="hit" if hit else "miss")
