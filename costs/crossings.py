"""Works out, once for both simulators, which messages the lanes of a schedule exchange and over which links.

The driver runs next to the target's lane. Verdicts and exits cross to the draft, with the states that a drafter reads;
windows cross to the target. Nothing crosses where both share a lane or a device. A measured `dispatch_s` is the round
trip of a message without payload, a link what payload adds, so nothing is counted twice.
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
"""A count and the target's own token."""


class Hop(NamedTuple):
    """One link of a route, in one direction; `latency_s` is in whole ticks."""

    name: str
    latency_s: float
    bytes_per_s: float


Route = tuple[Hop, ...]
"""A route: the links from one lane to another, in their order."""


def route_of(profile: Profile, origin: str, destination: str) -> Route:
    """Return the route of fewest links; it is empty for lanes that take turns, and for those that nothing links."""
    if profile.take_turns(origin, destination):
        return ()
    if (straight := profile.link(origin, destination)) is not None:
        return (_hop(origin, destination, straight),)
    routes: dict[str, Route] = {origin: ()}
    lanes = [origin]
    for lane in lanes:  # breadth first: the list grows during the loop
        for link in profile.links:
            if lane in link.lanes and (other := link.lanes[link.lanes[0] == lane]) not in routes:
                way = profile.link(lane, other) or link  # another link may have the lanes in this order
                routes[other] = (*routes[lane], _hop(lane, other, way))
                lanes.append(other)
    return routes.get(destination, ())


def _hop(start: str, end: str, link: LinkProfile) -> Hop:
    return Hop(f"{start}->{end}", one_in_ticks(link.latency_s), link.bytes_per_s)


def crossing_s(route: Route, num_bytes: Floats) -> Floats:
    """Return the seconds of messages that queue behind no other one."""
    seconds = np.zeros_like(num_bytes)
    for hop in route:
        seconds = seconds + (hop.latency_s + in_ticks(num_bytes / hop.bytes_per_s))
    return seconds


def second_arrival_s(route: Route, num_bytes: Sequence[float], sent_s: Sequence[Floats]) -> Floats:
    """Return when the second of two messages arrives; on every link it queues behind the first."""
    (first_bytes, second_bytes), (first_s, second_s) = num_bytes, sent_s
    for hop in route:
        free_s = first_s + one_in_ticks(first_bytes / hop.bytes_per_s)
        first_s = free_s + hop.latency_s
        second_s = np.maximum(second_s, free_s) + (one_in_ticks(second_bytes / hop.bytes_per_s) + hop.latency_s)
    return second_s


@dataclass(frozen=True, kw_only=True)
class Messages:
    """Routes between the two lanes, and the bytes of a schedule's messages.

    Verdicts are by the number of accepted tokens, windows by that of drafted ones; an exit message has 0 without an
    exit. Under the ratio rule windows are taken to be sampled, and to carry what each token was sampled from.
    """

    to_draft: Route
    to_target: Route
    verdict_bytes: tuple[float, ...]
    exit_bytes: float
    window_bytes: tuple[float, ...]

    @classmethod
    def of(cls, schedule: Schedule, profile: Profile) -> "Messages":
        """Return the messages of `schedule`; raises `ProfileError` where one takes longer than is plausible."""
        target, draft = schedule.target_lane, schedule.draft_lane or schedule.target_lane
        counts = range(schedule.num_rows)
        state_bytes = profile.features_bytes_per_row
        states = schedule.reads_features and not schedule.traits.overlaps
        drafted_bytes = float(BYTES_PER_CANDIDATE * (1 + NUM_SAMPLED_FROM * (schedule.verification == "ratio")))
        found = cls(
            to_draft=route_of(profile, target, draft),
            to_target=route_of(profile, draft, target),
            verdict_bytes=tuple(
                BYTES_PER_VERDICT + schedule.is_tree * count * BYTES_PER_ID + states * (count + 1) * state_bytes
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
        """Seconds of verdicts that queue behind nothing, by the number of accepted tokens."""
        return crossing_s(self.to_draft, np.array(self.verdict_bytes))

    @cached_property
    def window_s(self) -> Floats:
        """Seconds of windows, by the number of drafted tokens."""
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
