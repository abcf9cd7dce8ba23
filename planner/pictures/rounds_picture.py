"""Lanes over the rounds of a trace: what works when, and what came of every round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from markupsafe import Markup

from decoding.schedule import Schedule
from decoding.trace import Span, Trace, Work
from planner.page_template import page_template
from planner.wording import counted, milliseconds

NUM_ROUNDS: Final = 2
"""Rounds that a picture shows by itself."""
_WIDTH, _RIGHT = 640, 628
_LETTER, _LANE, _ABOVE = 8, 34, 22


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
    Work.ROLLOUT_STEP: Key("var(--rollout)", "draft from the text"),
    Work.BRANCH_STEP: Key("var(--branch)", "draft of all branches"),
    Work.FINISH_STEP: Key("var(--finish)", "draft of the branch that hit"),
}


class Piece(NamedTuple):
    """A stretch of a span; `exposed` marks draft work that nothing of the target hides."""

    span: Span
    start_s: float
    end_s: float
    exposed: bool


def rounds_picture(
    trace: Trace, schedule: Schedule, *, end_s: float | None = None, num_letters: int = 0, with_key: bool = True
) -> Markup:
    """Return the lanes of a trace that has spans, from the start of decoding to `end_s` or over its first rounds.

    Pictures with the same `end_s` and room for as many letters of lanes' names have time axes above each other.
    """
    end_s = trace.rounds[:NUM_ROUNDS][-1].end_s if end_s is None else end_s
    lanes = lanes_of(schedule)
    left = max(96, _LETTER * (2 + max(num_letters, *map(len, lanes))))

    def x(time_s: float) -> float:
        return round(left + time_s / end_s * (_RIGHT - left), 1)

    bars = [
        {
            "x": x(one.start_s),
            "width": max(0.6, x(one.end_s) - x(one.start_s)),
            "y": _ABOVE + _LANE * lanes.index(one.span.lane),
            "colour": KEY[one.span.work].colour,
            "is_exposed": one.exposed,
            "told": f"{KEY[one.span.work].label}, {milliseconds(one.span.end_s - one.span.start_s)}, "
            f"{counted(one.span.rows, 'row')}, round {one.span.round + 1}",
        }
        for one in pieces(trace, schedule, end_s)
    ]
    rounds = [one for one in trace.rounds if one.end_s <= end_s * 1.0001]
    used = [work for work in KEY if any(span.work is work and span.start_s < end_s for span in trace.spans)]
    svg = page_template(Path(__file__).with_name("rounds_picture.svg"), {}).render(
        width=_WIDTH,
        left=left,
        right=_RIGHT,
        above=_ABOVE,
        lane_height=_LANE,
        lanes=lanes,
        bars=bars,
        marks=[(x((one.start_s + one.end_s) / 2), x(one.end_s), one) for one in rounds],
        is_crowded=len(rounds) > NUM_ROUNDS,
        end=milliseconds(end_s),
        key=[(KEY[work].colour, KEY[work].label) for work in used] if with_key else [],
    )
    return Markup(svg)  # noqa: S704  the template escapes what it shows


def lanes_of(schedule: Schedule) -> list[str]:
    """Return the lanes that work, the target's first."""
    return list(dict.fromkeys(lane for lane in (schedule.target_lane, schedule.draft_lane) if lane is not None))


def pieces(trace: Trace, schedule: Schedule, end_s: float) -> Iterator[Piece]:
    """Spans up to `end_s`; those of the draft are cut where the target starts or stops working."""
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
