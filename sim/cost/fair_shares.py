"""Max-min fair shares of a bandwidth: nobody can have more unless somebody who has no more would have less."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.cost.cost_model import Floats


def fair_shares(wanted: Sequence[Floats], total: float) -> list[Floats]:
    """What everybody gets of `total`, in order; every entry of the arrays is a case of its own.

    Filled like water: whoever wants least gets that, or an equal share where even that is too much; the others go on
    with what is left. (Bertsekas and Gallager, Data Networks, 6.5.2.)
    """
    wanted_DC = np.stack(wanted)  # [devices, cases]
    order = np.argsort(wanted_DC, axis=0, kind="stable")
    granted, left = np.empty_like(wanted_DC), np.full(wanted_DC.shape[1:], total, dtype=np.float64)
    for num_served, devices in enumerate(order):
        share = left / (len(order) - num_served)
        wants = np.take_along_axis(wanted_DC, devices[np.newaxis], axis=0)[0]
        gets = np.minimum(wants, share)
        np.put_along_axis(granted, devices[np.newaxis], gets[np.newaxis], axis=0)
        left = left - gets
    return list(granted)


def stretches(wanted: Sequence[Floats], total: float) -> list[Floats]:
    """How many times as long everybody takes with such a share; 1 where all that is wanted is granted."""
    shares = fair_shares(wanted, total)
    return [
        np.divide(wants, gets, out=np.ones_like(wants), where=wants > gets)
        for wants, gets in zip(wanted, shares, strict=True)
    ]
