"""The first rounds of a simulated sequence, lane by lane: what hides behind the target, and what it waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from markupsafe import Markup

from decoding.schedule import Schedule
from decoding.trace import Trace
from planner.page_template import page_template
from planner.report.timeline import KEY, lanes_of, pieces
from planner.wording import milliseconds

_WIDTH, _RIGHT = 640, 628
_LETTER: Final = 8
_LANE: Final = 34
_ABOVE: Final = 22
NUM_ROUNDS: Final = 2


def rounds_picture(trace: Trace, schedule: Schedule) -> Markup:
    """Return the lanes over the first rounds of a trace that has spans, in the colours of the demo's page."""
    rounds = trace.rounds[:NUM_ROUNDS]
    end_s = rounds[-1].end_s
    lanes = lanes_of(schedule)
    left = max(96, _LETTER * (2 + max(map(len, lanes))))

    def x(time_s: float) -> float:
        return round(left + time_s / end_s * (_RIGHT - left), 1)

    bars = [
        {
            "x": x(one.start_s),
            "width": max(0.6, x(one.end_s) - x(one.start_s)),
            "y": _ABOVE + _LANE * lanes.index(one.span.lane),
            "colour": KEY[one.span.work].colour,
            "is_exposed": one.exposed,
            "told": f"{KEY[one.span.work].label}, {milliseconds(one.span.end_s - one.span.start_s)}",
        }
        for one in pieces(trace, schedule, end_s)
    ]
    used = [work for work in KEY if any(span.work is work and span.start_s < end_s for span in trace.spans)]
    svg = page_template(Path(__file__).with_name("rounds_picture.svg"), {}).render(
        width=_WIDTH,
        left=left,
        right=_RIGHT,
        above=_ABOVE,
        lane_height=_LANE,
        lanes=lanes,
        bars=bars,
        marks=[(x((one.start_s + one.end_s) / 2), x(one.end_s), one.num_committed, one.hit) for one in rounds],
        end=milliseconds(end_s),
        key=[(KEY[work].colour, KEY[work].label) for work in used],
    )
    return Markup(svg)  # noqa: S704  the template escapes what it shows
