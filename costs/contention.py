"""How much two lanes slow each other while both compute: measured slowdowns, and fair shares of a memory pool."""

from math import inf
from typing import NamedTuple

import numpy as np

from costs.cost_model import Floats
from hwprofiles.profile import Profile


class Slowdown(NamedTuple):
    """For each of two lanes: its time while the other lane computes over its time alone, by context."""

    target: Floats
    draft: Floats


class PairContention(NamedTuple):
    """The measured slowdown of two lanes that compute at once, and the bandwidth of their memory pool (may be inf).

    Each lane gets its max-min fair share of the pool: what it wants, but at most a common level, which is half of the
    bandwidth or, if one lane wants less, all that this one leaves (water filling; Bertsekas and Gallager, Data
    Networks, 6.5.2).
    """

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
        target_wants, draft_wants = target_bytes_per_s / self.target_slowdown, draft_bytes_per_s / self.draft_slowdown
        level = np.maximum(self.pool_bytes_per_s / 2, self.pool_bytes_per_s - np.minimum(target_wants, draft_wants))
        return Slowdown(
            self.target_slowdown * np.maximum(1.0, target_wants / level),
            self.draft_slowdown * np.maximum(1.0, draft_wants / level),
        )
