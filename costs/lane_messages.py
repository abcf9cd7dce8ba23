"""The messages between the two lanes of a schedule: their routes over links, their bytes and their times.

The driver runs next to the target's lane. Verdicts and exit messages, with the hidden states that a drafter reads,
cross to the draft's lane; windows cross to the target's. Nothing crosses if both are one lane or one device. A measured
`dispatch_s` is the round trip of an empty message, and a link adds only what the payload costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from costs.cost_model import Floats
from costs.ticks import in_ticks, one_in_ticks
from decoding.errors import ProfileError
from decoding.messages import NUM_SAMPLED_FROM
from decoding.schedule import Schedule
from hwprofiles.bounds import LONGEST_S
from hwprofiles.profile import BYTES_PER_CANDIDATE, LinkProfile, Profile

BYTES_PER_ID = 4
BYTES_PER_VERDICT = 2 * BYTES_PER_ID
"""The number of accepted tokens and the next token."""


class Hop(NamedTuple):
    """One link of a route, in one direction; `latency_s` is in whole ticks."""

    name: str
    latency_s: float
    bytes_per_s: float


Route = tuple[Hop, ...]
"""The links from one lane to another, in order."""


def route_of(profile: Profile, origin: str, destination: str) -> Route:
    """Return the route with the fewest links; it is empty for lanes that take turns or are not linked."""
    if profile.take_turns(origin, destination):
        return ()
    if (straight := profile.link(origin, destination)) is not None:
        return (_hop(origin, destination, straight),)
    routes: dict[str, Route] = {origin: ()}
    lanes = [origin]
    for lane in lanes:  # breadth first: the list grows during the loop
        for link in profile.links:
            if lane not in link.lanes:
                continue
            first, second = link.lanes
            neighbour = second if lane == first else first
            if neighbour not in routes:
                in_this_direction = profile.link(lane, neighbour) or link
                routes[neighbour] = (*routes[lane], _hop(lane, neighbour, in_this_direction))
                lanes.append(neighbour)
    return routes.get(destination, ())


def _hop(start: str, end: str, link: LinkProfile) -> Hop:
    return Hop(f"{start}->{end}", one_in_ticks(link.latency_s), link.bytes_per_s)


def crossing_s(route: Route, num_bytes: Floats) -> Floats:
    """Return the seconds of messages of `num_bytes` that do not queue behind another one."""
    seconds = np.zeros_like(num_bytes)
    for hop in route:
        seconds = seconds + (hop.latency_s + in_ticks(num_bytes / hop.bytes_per_s))
    return seconds


def second_arrival_s(route: Route, num_bytes: Sequence[float], sent_s: Sequence[Floats]) -> Floats:
    """Return when the second of two messages arrives, which queues behind the first on every link."""
    (first_bytes, second_bytes), (first_s, second_s) = num_bytes, sent_s
    for hop in route:
        free_s = first_s + one_in_ticks(first_bytes / hop.bytes_per_s)
        first_s = free_s + hop.latency_s
        second_s = np.maximum(second_s, free_s) + (one_in_ticks(second_bytes / hop.bytes_per_s) + hop.latency_s)
    return second_s


@dataclass(frozen=True, kw_only=True)
class Messages:
    """The routes between the two lanes, and the bytes of a schedule's messages.

    `verdict_bytes` are indexed by the number of accepted tokens, `window_bytes` by the number of drafted tokens;
    `exit_bytes` is 0 without an exit. Under the ratio rule a window also carries the distribution that each token was
    sampled from.
    """

    to_draft: Route
    to_target: Route
    verdict_bytes: tuple[float, ...]
    exit_bytes: float
    window_bytes: tuple[float, ...]

    @classmethod
    def of(cls, schedule: Schedule, profile: Profile) -> "Messages":
        """Return the messages of `schedule`; raise `ProfileError` if one takes implausibly long."""
        target, draft = schedule.target_lane, schedule.draft_lane or schedule.target_lane
        counts = range(schedule.num_rows)
        state_bytes = profile.features_bytes_per_row
        verdict_has_states = schedule.reads_features and not schedule.traits.overlaps
        drafted_bytes = float(BYTES_PER_CANDIDATE * (1 + NUM_SAMPLED_FROM * (schedule.verification == "ratio")))
        found = cls(
            to_draft=route_of(profile, target, draft),
            to_target=route_of(profile, draft, target),
            verdict_bytes=tuple(
                BYTES_PER_VERDICT
                + schedule.is_tree * count * BYTES_PER_ID
                + verdict_has_states * (count + 1) * state_bytes
                for count in counts
            ),
            exit_bytes=schedule.num_rows
            * (BYTES_PER_CANDIDATE * schedule.num_exit_candidates + schedule.exit_features * state_bytes)
            if schedule.uses_exit
            else 0.0,
            window_bytes=tuple(drafted_bytes * count for count in counts),
        )
        found._check(target, draft)
        return found

    @cached_property
    def verdict_s(self) -> Floats:
        """Seconds of verdicts without queueing, by the number of accepted tokens."""
        return crossing_s(self.to_draft, np.array(self.verdict_bytes))

    @cached_property
    def window_s(self) -> Floats:
        """Seconds of windows without queueing, by the number of drafted tokens."""
        return crossing_s(self.to_target, np.array(self.window_bytes))

    def _check(self, target: str, draft: str) -> None:
        for origin, route, most in (
            (target, self.to_draft, max(self.exit_bytes, *self.verdict_bytes)),
            (draft, self.to_target, self.window_bytes[-1]),
        ):
            seconds = sum(hop.latency_s + most / hop.bytes_per_s for hop in route)
            if not seconds <= LONGEST_S:
                raise ProfileError(
                    f"this profile gives {seconds:g} seconds of a message from lane {origin!r}: at most "
                    f"{LONGEST_S:g} are plausible, so a number in it is wrong"
                )
