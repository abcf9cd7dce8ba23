"""What a plan's answer turns on: every uncertain number moved to its ends, and the whole question asked again.

The answer is who leads, and the speed-up over plain decoding. Where an end changes who leads, halving finds the value
at which it does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import log, sqrt
from os.path import commonprefix
from typing import Final, NamedTuple

from decoding.errors import MirrorsdError
from hwprofiles.platform import Platform
from hwprofiles.quantity import Status
from planner.platform_plan.platform_plan import PlatformPlan
from planner.platform_plan.what_turns.moved_question import MovedQuestion, Standing, Way
from sim.derived.assumption import Assumption

_AT_MOST_ONE: Final = ("efficiency", "unhidden_share", "rate", "first_alternative")
"""Ends of the names of shares."""


_LEAST: Final = 0.01
"""The least share of a number that is asked about: the ends of curves' growth may lie below nothing."""


class UncertainNumber(NamedTuple):
    """One number, of one part or of all that are equal.

    Attributes:
        field: as `--set` takes it.
        value: what it is taken to be.
        low, high: between which it lies.
        status: how it is known.
    """

    field: str
    value: float
    low: float
    high: float
    status: Status


def uncertain_numbers(plan: PlatformPlan) -> list[UncertainNumber]:
    """Return all whose ends differ, in the order of the plan's assumptions."""
    platform, found = plan.question.platform, dict[str, UncertainNumber]()
    for one in plan.assumptions:
        # what exits bring is no matter where none are there
        if one.high > one.low and one.value > 0 and (plan.question.has_exits or ".exit_coverage" not in one.field):
            most = 1.0 if one.field.endswith(_AT_MOST_ONE) else one.high
            low = max(one.low, one.value * _LEAST)
            number = UncertainNumber(name_of(platform, one), one.value, low, min(one.high, most), one.status)
            found.setdefault(number.field, number)
    return list(found.values())


def name_of(platform: Platform, one: Assumption) -> str:
    """Return the name of a number for `--set`: of all parts of a sheet that have the same one, or of its own part."""
    part, _, field = one.field.rpartition(".")
    if part in platform.devices and field == "memory_bytes_per_s":
        pool, memory = platform.pool_of(part)
        if pool in platform.memory_pools and platform.reading_peak(part) is memory.bytes_per_s:
            return f"{_pools(platform, pool)}.bytes_per_s"
    for name, parts in _classes(platform).items():
        if part in parts and len(parts) > 1 and len({getattr(own, field) for own in parts.values()}) == 1:
            return f"{name}.{field}"
    return one.field


def _classes(platform: Platform) -> dict[str, dict[str, object]]:
    """Return the parts of every sheet by their names, and before them those of links of one family."""
    families: defaultdict[str, dict[str, object]] = defaultdict(dict)
    sheets: defaultdict[str, dict[str, object]] = defaultdict(dict)
    for link in platform.links:
        name, sheet = "-".join(link.between), str(link.sheet)
        families[f"links:{sheet.rpartition('-')[0]}"][name] = link
        sheets[f"links:{sheet}"][name] = link
    for name, device in platform.devices.items():
        sheets[f"devices:{device.sheet}"][name] = device
    of_several = {name: parts for name, parts in families.items() if parts not in sheets.values()}
    return {name: parts for name, parts in (of_several | sheets).items() if not name.endswith((":", ":None"))}


def _pools(platform: Platform, name: str) -> str:
    """Return a pattern of all memories that are as fast as one, where it names no other; else its name."""
    rate = platform.memory_pools[name].bytes_per_s
    alike = [pool for pool, memory in platform.memory_pools.items() if memory.bytes_per_s == rate]
    start = commonprefix(alike)  # noqa: RUF071  of names, not of paths
    others = [*(set(platform.memory_pools) - set(alike)), *platform.devices]
    is_told = len(alike) > 1 and start and not any(other.startswith(start) for other in others)
    return f"{start}*" if is_told else name


_WORTH: Final = 1.02
"""From this much faster on another leader at an end is worth to be told."""
_HALVINGS: Final = 6
SMALLEST: Final = 0.005
"""Smallest change of the speed-up that counts as an effect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Where another way to decode takes the lead.

    Attributes:
        at: the value from which on it leads.
        side: on which side of it.
        leader: who leads there.
    """

    at: float
    side: str
    leader: Way


@dataclass(frozen=True, kw_only=True, slots=True)
class TornadoBar:
    """One number's effect on the answer.

    Attributes:
        number: itself.
        speedup_low, speedup_high: of the best speculation over plain decoding with the number at either end.
        now: today's.
        turn: the nearest value at which another way leads; None where none does within the ends.
    """

    number: UncertainNumber
    speedup_low: float
    speedup_high: float
    now: float
    turn: Turn | None

    @property
    def effect_low(self) -> float:
        """Change of the speed-up where the number is at its low end."""
        return self.speedup_low - self.now

    @property
    def effect_high(self) -> float:
        """Change of the speed-up where the number is at its high end."""
        return self.speedup_high - self.now

    @property
    def size(self) -> float:
        """The larger of both effects, either way."""
        return max(abs(self.effect_low), abs(self.effect_high))


def tornado(asked: MovedQuestion) -> tuple[TornadoBar, ...]:
    """Return the numbers with an effect: those first that change who leads, and the larger effects first."""
    bars = [bar for number in uncertain_numbers(asked.plan) for bar in _bar(asked, number)]
    return tuple(sorted(bars, key=lambda bar: (bar.turn is None, -bar.size)))


def _bar(asked: MovedQuestion, number: UncertainNumber) -> Iterator[TornadoBar]:
    with suppress(MirrorsdError):  # beyond what a platform may have: no end to ask about
        low, high = (asked.standing({number.field: value}) for value in (number.low, number.high))
        turns = [_turn(asked, number, value, there) for value, there in ((number.low, low), (number.high, high))]
        nearest = min(filter(None, turns), key=lambda turn: abs(log(turn.at / number.value)), default=None)
        bar = TornadoBar(
            number=number,
            speedup_low=low.speedup,
            speedup_high=high.speedup,
            now=asked.standing().speedup,
            turn=nearest,
        )
        if nearest is not None or bar.size >= SMALLEST:
            yield bar


def _turn(asked: MovedQuestion, number: UncertainNumber, end: float, there: Standing) -> Turn | None:
    """Return where the lead changes between today's value and an end; None where it does not, or for nearly nothing."""
    if asked.lead_lost(there) < _WORTH or asked.is_like_today(there.leader):
        return None
    before, after, leader = number.value, end, there.leader
    for _ in range(_HALVINGS):
        half = sqrt(before * after)
        found = asked.standing({number.field: half})
        if asked.lead_lost(found) > 1:
            after, leader = half, found.leader
        else:
            before = half
    return Turn(at=after, side="below" if end < number.value else "above", leader=leader)
