"""The picture of a row curve: milliseconds over rows, with the interval as a band."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from planner.page_template import page_template
from planner.row_curve import RowCurve
from planner.wording import in_ms

_WIDTH: Final = 720
_HEIGHT: Final = 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 690, 64, 360
_NUM_TICKS: Final = 4


def curve_svg(curve: RowCurve) -> str:
    """Return the picture as SVG, for pages that are light or dark."""
    ordered = sorted(curve.rows, key=lambda one: one.rows)
    most_s, last = max(one.high for one in ordered), ordered[-1].rows

    def x(rows: int) -> float:
        return round(_LEFT + (rows - 1) / max(1, last - 1) * (_RIGHT - _LEFT), 1)

    def y(seconds: float) -> float:
        return round(_BOTTOM - seconds / most_s * (_BOTTOM - _TOP), 1)

    lows = [(x(one.rows), y(one.low)) for one in ordered]
    highs = [(x(one.rows), y(one.high)) for one in reversed(ordered)]
    return page_template(Path(__file__).with_name("row_curve.svg"), {"in_ms": in_ms}).render(
        curve=curve,
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_RIGHT,
        bottom=_BOTTOM,
        band=lows + highs,
        points=[(x(one.rows), y(one.time_s), one.rows) for one in ordered],
        ticks=[(y(seconds), seconds) for seconds in (most_s * tick / _NUM_TICKS for tick in range(_NUM_TICKS + 1))],
    )
