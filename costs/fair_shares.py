"""Max-min fair shares of a bandwidth: nobody can have more unless somebody who has no more would have less."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costs.cost_model import Floats


def fair_shares(wanted: Sequence[Floats], total: float) -> list[Floats]:
    """What everybody gets of `total`, in order; every entry of the arrays is a case of its own.

    Filled like water: everybody has at most the same level, and who wants less than that has all it wants (Bertsekas
    and Gallager, Data Networks, 6.5.2). When the k who want least have what they want, the others could have
    (total - theirs) / (n - k) each; the level is the highest of these, since it rises as long as they want less.
    """
    wanted_DC = np.stack(wanted)  # [devices, cases]
    ascending_DC = np.sort(wanted_DC, axis=0)
    theirs_DC = np.zeros_like(wanted_DC)
    np.cumsum(ascending_DC[:-1], axis=0, out=theirs_DC[1:])
    num_others = np.arange(len(wanted), 0, -1)[:, np.newaxis]
    level_C = ((total - theirs_DC) / num_others).max(axis=0)
    return list(np.minimum(wanted_DC, level_C))


def stretches(wanted: Sequence[Floats], total: float) -> list[Floats]:
    """How many times as long everybody takes with such a share; 1 where all that is wanted is granted."""
    shares = fair_shares(wanted, total)
    return [
        np.divide(wants, gets, out=np.ones_like(wants), where=wants > gets)
        for wants, gets in zip(wanted, shares, strict=True)
    ]
