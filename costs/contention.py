"""How much two lanes slow each other while both compute: measured slowdowns, and fair shares of a memory pool."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from costs.cost_model import Floats
from hwprofiles.profile import Profile


def fair_share_slowdowns(wanted: Sequence[Floats], total: float) -> list[Floats]:
    """Return by what factor (1 or more) each device is slower with its max-min fair share of a memory bandwidth.

    Water filling (Bertsekas and Gallager, Data Networks, 6.5.2): a device gets what it wants, but at most a common
    level. If the k devices that want least get all they want, (total - their sum) / (n - k) is left for each other one;
    the level is the largest of these over k. The entries of the arrays are independent cases.
    """
    wanted_DC = np.stack(wanted)  # [devices, cases]
    ascending_DC = np.sort(wanted_DC, axis=0)
    taken_DC = np.zeros_like(wanted_DC)
    np.cumsum(ascending_DC[:-1], axis=0, out=taken_DC[1:])
    num_others = np.arange(len(wanted), 0, -1)[:, np.newaxis]
    level_C = ((total - taken_DC) / num_others).max(axis=0)
    shares_DC = np.minimum(wanted_DC, level_C)
    return list(np.divide(wanted_DC, shares_DC, out=np.ones_like(wanted_DC), where=wanted_DC > shares_DC))


class Slowdown(NamedTuple):
    """For each of two lanes: its time while the other lane computes over its time alone, by context."""

    target: Floats
    draft: Floats


class PairContention(NamedTuple):
    """The measured slowdown of two lanes that compute at once, and the bandwidth of their memory pool (may be inf)."""

    target_slowdown: float
    draft_slowdown: float
    pool_bytes_per_s: float

    @classmethod
    def of(cls, profile: Profile, target_lane: str, draft_lane: str) -> "PairContention":
        """Return a profile's values for two lanes; no slowdown if it has none."""
        pool = profile.pool_bytes_per_s(target_lane, draft_lane) or inf
        return cls(*profile.slowdown(target_lane, draft_lane), pool)

    def slowdown_of_two(self, target_bytes_per_s: float, draft_bytes_per_s: float) -> tuple[float, float]:
        """Return `slowdown` for one pair of operations, without the overhead of arrays."""
        if self.pool_bytes_per_s == inf:
            return self.target_slowdown, self.draft_slowdown
        target_wants, draft_wants = target_bytes_per_s / self.target_slowdown, draft_bytes_per_s / self.draft_slowdown
        level = max(self.pool_bytes_per_s / 2, self.pool_bytes_per_s - min(target_wants, draft_wants))
        return self.target_slowdown * max(1.0, target_wants / level), self.draft_slowdown * max(
            1.0, draft_wants / level
        )

    def slowdown(self, target_bytes_per_s: Floats, draft_bytes_per_s: Floats) -> Slowdown:
        """Return the measured slowdowns times those of a fair share, given the bandwidth that each lane uses alone."""
        wanted = target_bytes_per_s / self.target_slowdown, draft_bytes_per_s / self.draft_slowdown
        target, draft = fair_share_slowdowns(wanted, self.pool_bytes_per_s)
        return Slowdown(self.target_slowdown * target, self.draft_slowdown * draft)
