"""What lanes do over time, cut into pieces: work of the draft that the target's hides, and work that it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from decoding.schedule import Schedule
from decoding.trace import Span, Trace, Work


class Key(NamedTuple):
    """A legend entry: a colour, which is a name of the page's style sheet, and its meaning."""

    colour: str
    label: str


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
