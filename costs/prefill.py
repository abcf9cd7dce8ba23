"""The time of prefill, for both simulators; `runtime.lanes.sequence_lanes` does the same in real runs.

The target reads all tokens of the prompt but the last, and so does a draft model or a draft head. A drafter that reads
the target's hidden states begins when the target is done. Others read at the same time, and both slow each other as in
decoding; they take turns if they share a lane, or if one has a group of devices and the other a device of it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from costs.contention import PairContention
from costs.cost_model import LaneCost, Part, traffic
from costs.lane_messages import crossing_s, route_of
from decoding.errors import ProfileError
from decoding.schedule import Schedule
from hwprofiles.profile import Profile

_TARGET, _DRAFT = Part("prefill"), Part("draft_prefill")
_NO_CONTEXT = np.zeros(1)

Readers = tuple[str, str, Part | None, bool]
"""The target's lane, the draft's lane, the part that reads the prompt for the draft, and whether it waits for the
target to finish."""


def _readers(schedule: Schedule) -> Readers:
    traits, part = schedule.traits, None
    if traits.has_draft_model:
        part = _DRAFT
    elif traits.reads_states:
        part = Part("head_prefill", drafter=schedule.drafter)
    return schedule.target_lane, schedule.draft_lane or schedule.target_lane, part, schedule.reads_features


class PrefillTimes:
    """Prefill of any schedule on one profile."""

    def __init__(self, profile: Profile, costs: Mapping[str, LaneCost]) -> None:
        self._profile, self._costs = profile, costs
        self._known: dict[tuple[Readers, tuple[int, ...]], list[float] | None] = {}

    def known(self, schedule: Schedule, prompt_lengths: Sequence[int]) -> list[float] | None:
        """Return `seconds`; None if they were not measured, as decoding can be simulated without them."""
        key = (_readers(schedule), tuple(prompt_lengths))
        if key not in self._known:
            try:
                self._known[key] = self.seconds(schedule, prompt_lengths)
            except ProfileError:
                self._known[key] = None
        return self._known[key]

    def seconds(self, schedule: Schedule, prompt_lengths: Sequence[int]) -> list[float]:
        """Return the time from request to start of decoding, for each prompt length.

        Raises `ProfileError` if a lane's prefill was not measured, `OutOfRangeError` if not for that length.
        """
        readers = _readers(schedule)
        seconds = {length: self._of(readers, length - 1) for length in dict.fromkeys(prompt_lengths)}
        return [seconds[length] for length in prompt_lengths]

    def _of(self, readers: Readers, rows: int) -> float:
        target, draft, part, draft_waits = readers
        target_s, target_dispatch_s = self._read_s(target, _TARGET, rows), self._profile.lane(target).dispatch_s
        if part is None:
            return target_s + target_dispatch_s
        draft_s, draft_dispatch_s = self._read_s(draft, part, rows), self._profile.lane(draft).dispatch_s
        if draft_waits:
            return target_s + target_dispatch_s + self._states_s(target, draft, rows) + draft_s + draft_dispatch_s
        if self._profile.take_turns(target, draft):  # both requests are sent at once, so their dispatches overlap
            return target_s + draft_s + max(target_dispatch_s, draft_dispatch_s)
        if target_s and draft_s:
            target_s, draft_s = self._at_once(readers, rows, target_s, draft_s)
        return max(target_s + target_dispatch_s, draft_s + draft_dispatch_s)

    def _states_s(self, target: str, draft: str, rows: int) -> float:
        num_bytes = np.array([rows * self._profile.features_bytes_per_row])
        return float(crossing_s(route_of(self._profile, target, draft), num_bytes)[0]) if rows else 0.0

    def _read_s(self, lane: str, part: Part, rows: int) -> float:
        self._profile.lane(lane)
        cost = self._costs[lane]
        cost.facts(part)  # raises ProfileError if the part was not measured
        return float(cost.seconds(part, rows, _NO_CONTEXT)[0]) if rows else 0.0

    def _at_once(self, readers: Readers, rows: int, target_s: float, draft_s: float) -> tuple[float, float]:
        """Return when target and draft are done if both start at once: slowed until one ends, the other then alone."""
        target, draft, part, _ = readers
        assert part is not None, "no drafter reads next to the target"
        target_slowdown, draft_slowdown = PairContention.of(self._profile, target, draft).slowdown_of_two(
            float(traffic(self._costs[target], _TARGET, rows, _NO_CONTEXT)[0]) / target_s,
            float(traffic(self._costs[draft], part, rows, _NO_CONTEXT)[0]) / draft_s,
        )
        both_s = min(target_s * target_slowdown, draft_s * draft_slowdown)
        return both_s + target_s - both_s / target_slowdown, both_s + draft_s - both_s / draft_slowdown
