"""What every step away from a curve of the very device costs: curves and devices left out in turn, and asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import log
from typing import Any, Final

import numpy as np

from hwprofiles.curves.row_curves import PublicCurve
from hwprofiles.curves.row_prices import STEPS, Asked, Step, reading, relative_log_error, row_prices

ROWS: Final = (2, 3, 4, 5, 6, 8)


def left_out(curves: Sequence[PublicCurve], starts_s: Callable[[PublicCurve], float]) -> dict[str, Any]:
    """Return errors by step: of ratios, and of the pass over one row, dense models and mixtures apart.

    `starts_s` is what kernels' starts take of such a pass.

    The steps of the device itself leave the one curve out, the others leave out all curves of its device, and what is
    nearer too: so every step is asked about the same curves.
    """
    ratios, shares = defaultdict[Step, list[float]](list), defaultdict[Step, list[float]](list)
    dense, mixtures = defaultdict[Step, list[float]](list), defaultdict[Step, list[float]](list)
    for left in curves:
        if left.is_deep:
            continue
        asked = asked_of(left)
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
            read = reading(asked, others)
            if read is not None and left.efficiency is not None and read.step == step:
                reading_s = (1 - left.starts) * left.one_row_s * left.efficiency / read.efficiency
                one_rows = mixtures if left.is_mixture else dense
                one_rows[step].append(abs(log((starts_s(left) + reading_s) / left.one_row_s)))
    return {
        "ratios": {step: _summary(ratios[step]) for step in STEPS},
        "share_of_log_ratio": {step: _summary(shares[step]) for step in STEPS},
        "one_row": {step: _summary(dense[step]) for step in STEPS},
        "one_row_of_mixtures": {step: _summary(mixtures[step]) for step in STEPS},
    }


def asked_of(curve: PublicCurve) -> Asked:
    """Return the question that a curve answers."""
    names = (curve.device, curve.family, curve.engine, curve.backend, curve.weights)
    return Asked(*names, curve.billions, curve.is_mixture)


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
