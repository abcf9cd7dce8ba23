"""What every step away from a curve of the very device costs: curves and devices left out in turn, and asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import log
from typing import Any, Final

import numpy as np

from hwprofiles.curves.asked import STEPS, Asked, Step
from hwprofiles.curves.plain_speeds import NORMAL_90, PlainSpeeds
from hwprofiles.curves.row_curves import PublicCurve
from hwprofiles.curves.row_prices import relative_log_error, row_prices

ROWS: Final = (2, 3, 4, 5, 6, 8)


def left_out(curves: Sequence[PublicCurve]) -> dict[str, Any]:
    """Return errors of ratios by step, and of plain speeds.

    The steps of the device itself leave the one curve out, the others leave out all curves of its device, and what is
    nearer too: so every step is asked about the same curves.
    """
    ratios, shares = defaultdict[Step, list[float]](list), defaultdict[Step, list[float]](list)
    for left in curves:
        if left.is_deep or not left.has_rows:
            continue
        asked = Asked.of_curve(left)
        for step, others in _without(left, curves):
            found = row_prices(asked, others)
            if found is not None and found.step == step:
                for rows in ROWS:
                    measured = left.ratio(rows)
                    if measured is not None and rows in found.rows:
                        predicted = found.ratios[found.rows.index(rows)]
                        measured /= left.expert_factor(rows)
                        ratios[step].append(abs(log(measured / predicted)))
                        shares[step].append(relative_log_error(measured, predicted))
    return {
        "ratios": {step: _summary(ratios[step]) for step in STEPS},
        "share_of_log_ratio": {step: _summary(shares[step]) for step in STEPS},
        "plain_speed": plain_left_out(curves),
    }


def plain_left_out(curves: Sequence[PublicCurve]) -> dict[str, Any]:
    """Return what one-row speeds are off by without the curve, all of its device, or all of its architecture.

    `held` is the share inside their intervals at 90 %.
    """
    speeds = PlainSpeeds(curves)
    told = {}
    for what, groups in (
        ("curve", [str(place) for place in range(len(speeds.curves))]),
        ("device", [one.device for one in speeds.curves]),
        ("family", [one.family for one in speeds.curves]),
    ):
        errors, deviations = speeds.left_out(groups)
        held = float(np.mean(np.abs(errors) <= NORMAL_90 * deviations))
        told[what] = (_summary(np.abs(errors).tolist()) or {}) | {"held": round(held, 3)}
    return told


def _without(left: PublicCurve, curves: Sequence[PublicCurve]) -> Iterator[tuple[Step, list[PublicCurve]]]:
    """Yield what is left of the curves when all that is nearer than a step is taken out, by step."""
    others = [one for one in curves if one is not left]
    yield "device", others
    same = (left.device, left.backend, left.weights)
    others = [one for one in others if (one.device, one.backend, one.weights) != same]
    yield "device otherwise", others
    others = [one for one in others if one.device != left.device]
    yield "family", others
    others = [one for one in others if one.family != left.family]
    yield "engine", others
    yield "others", [one for one in others if one.engine != left.engine]


def _summary(errors: Sequence[float]) -> dict[str, float] | None:
    if not errors:
        return None
    of_90 = float(np.quantile(errors, 0.9))
    return {"median": round(float(np.median(errors)), 3), "of_90": round(of_90, 3), "num": len(errors)}
