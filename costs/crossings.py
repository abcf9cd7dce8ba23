"""What crosses between the lanes of a schedule, and over which links: worked out here, once for both worlds.

The driver sits next to the target's lane. So what it tells the draft's lane crosses, and what that answers::

    to the draft    verdict   what was accepted, and the target's own token; of a tree the path that was accepted; for
                              whatever reads the target's hidden states theirs, of every row that was committed
                    exit      ids and log-probs of every row's candidates; with features the rows' hidden states
    to the target   window    ids and log-probs of the drafted tokens

Nothing crosses where both are one lane, and a request that carries nothing costs what dispatching it costs. A measured
`dispatch_s` is the way of a message without payload to its lane and back, and a measured link is what a message costs
beyond one without payload (`calibrate.fitting.links`): so neither counts what the other holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from costs.cost_model import Floats
from costs.ticks import in_ticks, one_in_ticks
from decoding.errors import ProfileError
from decoding.schedule import Schedule
from hwprofiles.bounds import LONGEST_S
from hwprofiles.profile import BYTES_PER_CANDIDATE, Profile

BYTES_PER_ID = 4
BYTES_PER_VERDICT = 2 * BYTES_PER_ID
"""A count and the target's own token."""


class Hop(NamedTuple):
    """One link on the way of a message, in the direction it goes; `latency_s` is in whole ticks."""

    name: str
    latency_s: float
    bytes_per_s: float


Way = tuple[Hop, ...]
"""The links from one lane to another."""


def way_of(profile: Profile, origin: str, destination: str) -> Way:
    """The way of fewest links over lanes; without any where both are one lane, or nothing links them."""
    ways: dict[str, Way] = {origin: ()}
    lanes = [origin]
    for lane in lanes:  # grows while it is gone through
        for link in profile.links:
            if lane in link.lanes and (other := link.lanes[link.lanes[0] == lane]) not in ways:
                ways[other] = (*ways[lane], _hop(profile, lane, other))
                lanes.append(other)
    return ways.get(destination, ())


def _hop(profile: Profile, origin: str, destination: str) -> Hop:
    link = profile.link(origin, destination)
    assert link is not None, "a way over a link that is not there"
    return Hop(f"{origin}->{destination}", one_in_ticks(link.latency_s), link.bytes_per_s)


def crossing_s(way: Way, num_bytes: Floats) -> Floats:
    """How long messages take that meet no other one on their way."""
    seconds = np.zeros_like(num_bytes)
    for hop in way:
        seconds = seconds + (hop.latency_s + in_ticks(num_bytes / hop.bytes_per_s))
    return seconds


def second_arrival_s(way: Way, num_bytes: Sequence[float], sent_s: Sequence[Floats]) -> Floats:
    """When the second of two messages arrives, which queues after the first one on every link."""
    (first_bytes, second_bytes), (first_s, second_s) = num_bytes, sent_s
    for hop in way:
        free_s = first_s + one_in_ticks(first_bytes / hop.bytes_per_s)
        first_s = free_s + hop.latency_s
        second_s = np.maximum(second_s, free_s) + (one_in_ticks(second_bytes / hop.bytes_per_s) + hop.latency_s)
    return second_s


@dataclass(frozen=True, kw_only=True)
class Messages:
    """The messages of a schedule.

    Attributes:
        to_draft, to_target: the ways between its lanes.
        verdict_bytes: by the number of accepted tokens.
        exit_bytes: of an exit message; nothing without an exit.
        window_bytes: by the number of drafted tokens.
    """

    to_draft: Way
    to_target: Way
    verdict_bytes: tuple[float, ...]
    exit_bytes: float
    window_bytes: tuple[float, ...]

    @classmethod
    def of(cls, schedule: Schedule, profile: Profile) -> Messages:
        """Those of `schedule`.

        Raises:
            ProfileError: one takes longer than is plausible.
        """
        target, draft = schedule.target_lane, schedule.draft_lane or schedule.target_lane
        counts = range(schedule.num_rows)
        state_bytes = profile.features_bytes_per_row
        states = schedule.reads_features and not schedule.traits.overlaps
        found = cls(
            to_draft=way_of(profile, target, draft),
            to_target=way_of(profile, draft, target),
            verdict_bytes=tuple(
                BYTES_PER_VERDICT + schedule.is_tree * count * BYTES_PER_ID + states * (count + 1) * state_bytes
                for count in counts
            ),
            exit_bytes=schedule.num_rows
            * (BYTES_PER_CANDIDATE * schedule.num_exit_candidates + schedule.exit_features * state_bytes)
            if schedule.uses_exit
            else 0.0,
            window_bytes=tuple(float(BYTES_PER_CANDIDATE * count) for count in counts),
        )
        found._check(target, draft)
        return found

    @staticmethod
    def key(schedule: Schedule) -> tuple[object, ...]:
        """All of a schedule that its messages depend on."""
        lanes = schedule.target_lane, schedule.draft_lane
        return *lanes, schedule.method, schedule.num_rows, schedule.num_exit_candidates, schedule.exit_features

    @cached_property
    def verdict_s(self) -> Floats:
        """How long verdicts take that meet no other message, by the number of accepted tokens."""
        return crossing_s(self.to_draft, np.array(self.verdict_bytes))

    @cached_property
    def window_s(self) -> Floats:
        """How long windows take, by the number of drafted tokens."""
        return crossing_s(self.to_target, np.array(self.window_bytes))

    def _check(self, target: str, draft: str) -> None:
        for origin, way, most in (
            (target, self.to_draft, max(self.exit_bytes, *self.verdict_bytes)),
            (draft, self.to_target, self.window_bytes[-1]),
        ):
            seconds = sum(hop.latency_s + most / hop.bytes_per_s for hop in way)
            if not seconds <= LONGEST_S:
                msg = (
                    f"by this profile it is {seconds:g} seconds of a message from lane {origin!r}: at most "
                    f"{LONGEST_S:g} are plausible, so a number in it is wrong"
                )
                raise ProfileError(msg)
