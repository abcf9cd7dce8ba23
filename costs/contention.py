"""How much two lanes slow each other while both compute: measured slowdowns, and fair shares of a memory pool."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from costs.cost_model import Floats
from hwprofiles.profile import Profile


def fair_share_slowdowns(wanted: Sequence[Floats], total: float) -> list[Floats]:
    """Return how many times as long each takes with its max-min fair share of a bandwidth; 1 where it has all it wants.

    Water filling (Bertsekas and Gallager, Data Networks, 6.5.2): each gets at most a common level; those that want less
    get what they want. When the k who want least are served, (total - theirs) / (n - k) is left for each of the others;
    the level is the highest of these. Every entry of the arrays is a case of its own.
    """
    wanted_DC = np.stack(wanted)  # [devices, cases]
    ascending_DC = np.sort(wanted_DC, axis=0)
    theirs_DC = np.zeros_like(wanted_DC)
    np.cumsum(ascending_DC[:-1], axis=0, out=theirs_DC[1:])
    num_others = np.arange(len(wanted), 0, -1)[:, np.newaxis]
    level_C = ((total - theirs_DC) / num_others).max(axis=0)
    shares_DC = np.minimum(wanted_DC, level_C)
    return list(np.divide(wanted_DC, shares_DC, out=np.ones_like(wanted_DC), where=wanted_DC > shares_DC))


class Slowdown(NamedTuple):
    """Time while the other lane computes over time alone, by context."""

    target: Floats
    draft: Floats


class PairContention(NamedTuple):
    """Two lanes that compute at once: latency of each over that alone, and the (perhaps infinite) bandwidth."""

    target_slowdown: float
    draft_slowdown: float
    pool_bytes_per_s: float

    @classmethod
    def of(cls, profile: Profile, target_lane: str, draft_lane: str) -> "PairContention":
        """Return what the profile knows of the two lanes; no slowdown where it has no entry."""
        pool = profile.pool_bytes_per_s(target_lane, draft_lane) or inf
        return cls(*profile.slowdown(target_lane, draft_lane), pool)

    def slowdown_of_two(self, target_bytes_per_s: float, draft_bytes_per_s: float) -> tuple[float, float]:
        """Return `slowdown` of a single pair of operations, without the cost of arrays."""
        if self.pool_bytes_per_s == inf:
            return self.target_slowdown, self.draft_slowdown
        target_wants, draft_wants = target_bytes_per_s / self.target_slowdown, draft_bytes_per_s / self.draft_slowdown
        level = max(self.pool_bytes_per_s / 2, self.pool_bytes_per_s - min(target_wants, draft_wants))
        return self.target_slowdown * max(1.0, target_wants / level), self.draft_slowdown * max(
            1.0, draft_wants / level
        )

    def slowdown(self, target_bytes_per_s: Floats, draft_bytes_per_s: Floats) -> Slowdown:
        """Return both slowdowns, by the bandwidths each takes alone: as measured, then max-min fair in the pool."""
        wanted = target_bytes_per_s / self.target_slowdown, draft_bytes_per_s / self.draft_slowdown
        target, draft = fair_share_slowdowns(wanted, self.pool_bytes_per_s)
        return Slowdown(self.target_slowdown * target, self.draft_slowdown * draft)
