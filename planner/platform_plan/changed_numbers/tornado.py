"""Which numbers could change a plan's answer: moves every uncertain number to its ends, and plans again.

The answer is the fastest way to decode and its speed-up over plain decoding. Where another way is the fastest at an end
of a number's interval, bisection finds the value at which the lead changes.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import log, sqrt
from os.path import commonprefix
from typing import Final, NamedTuple

from decoding.errors import MirrorsdError
from hwprofiles.platform import Platform
from planner.platform_plan.changed_numbers.moved_question import MovedQuestion, Standing, Way
from planner.platform_plan.platform_plan import PlatformPlan
from sim.derived.assumption import Assumption

_AT_MOST_ONE: Final = ("memory_efficiency", "flops_efficiency", "unhidden_share", "rate", "first_alternative")
"""Numbers whose names end like this are shares, at most 1."""
_LEAST: Final = 0.01
"""Numbers are lowered at most to this share of their value; the low end of a curve's growth may be negative."""
_WORTH: Final = 1.02
"""Another leader at an end is reported only if it is at least this many times as fast as today's leader there."""
_HALVINGS: Final = 6
SMALLEST: Final = 0.005
"""Smaller changes of the speed-up do not count as an effect."""


def uncertain_numbers(plan: PlatformPlan) -> list[Assumption]:
    """Return the plan's assumptions that have an interval, with their names for `--set`; equal parts share a name."""
    platform, found = plan.question.platform, dict[str, Assumption]()
    for one in plan.assumptions:
        is_used = plan.question.has_exits or ".exit_coverage" not in one.field
        if one.high > one.low and one.value > 0 and is_used:
            high = min(one.high, 1.0) if one.field.endswith(_AT_MOST_ONE) else one.high
            name = name_of(platform, one)
            found.setdefault(name, replace(one, field=name, low=max(one.low, one.value * _LEAST), high=high))
    return list(found.values())


def name_of(platform: Platform, one: Assumption) -> str:
    """Return the name of a number for `--set`: of all parts with the same sheet and number, or of one part."""
    part, _, field = one.field.rpartition(".")
    if part in platform.devices and field == "memory_bytes_per_s":
        pool, memory = platform.pool_of(part)
        if pool in platform.memory_pools and platform.reading_peak(part) is memory.bytes_per_s:
            return f"{_pools(platform, pool)}.bytes_per_s"
    for name, parts in _parts_by_sheet(platform).items():
        if part in parts and len(parts) > 1 and len({getattr(own, field) for own in parts.values()}) == 1:
            return f"{name}.{field}"
    return one.field


def _parts_by_sheet(platform: Platform) -> dict[str, dict[str, object]]:
    """Return {part name: part} for the name of each sheet; families of several link sheets come first."""
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
    """Return a pattern that matches all memories as fast as the named one and no other part; else its name."""
    rate = platform.memory_pools[name].bytes_per_s
    alike = [pool for pool, memory in platform.memory_pools.items() if memory.bytes_per_s == rate]
    start = commonprefix(alike)  # noqa: RUF071  of names, not of paths
    others = [*(set(platform.memory_pools) - set(alike)), *platform.devices]
    is_unique = len(alike) > 1 and start and not any(other.startswith(start) for other in others)
    return f"{start}*" if is_unique else name


class Turn(NamedTuple):
    """The value of a number at which the lead changes, the side of it (`below` or `above`), and the leader there."""

    at: float
    side: str
    leader: Way


class TornadoBar(NamedTuple):
    """One number's effect on the answer.

    Attributes:
        number: the number, with its ends.
        speedup_low, speedup_high: speed of the best speculation over plain decoding, with the number at either end.
        now: the same speed-up today.
        turn: the nearest value at which another way is the fastest; None if there is none within the interval.
    """

    number: Assumption
    speedup_low: float
    speedup_high: float
    now: float
    turn: Turn | None

    @property
    def effect_low(self) -> float:
        """Change of the speed-up with the number at its low end."""
        return self.speedup_low - self.now

    @property
    def effect_high(self) -> float:
        """Change of the speed-up with the number at its high end."""
        return self.speedup_high - self.now

    @property
    def size(self) -> float:
        """The larger of both effects."""
        return max(abs(self.effect_low), abs(self.effect_high))


def tornado(asked: MovedQuestion) -> tuple[TornadoBar, ...]:
    """Return the numbers that matter: first those that change which way is the fastest, then by size of the effect."""
    bars = [bar for number in uncertain_numbers(asked.plan) for bar in _bar(asked, number)]
    return tuple(sorted(bars, key=lambda bar: (bar.turn is None, -bar.size)))


def _bar(asked: MovedQuestion, number: Assumption) -> Iterator[TornadoBar]:
    with suppress(MirrorsdError):  # an end that no platform can have
        low, high = (asked.standing({number.field: value}) for value in (number.low, number.high))
        turns = [_turn(asked, number, value, there) for value, there in ((number.low, low), (number.high, high))]
        nearest = min(filter(None, turns), key=lambda turn: abs(log(turn.at / number.value)), default=None)
        bar = TornadoBar(number, low.speedup, high.speedup, asked.standing().speedup, nearest)
        if nearest is not None or bar.size >= SMALLEST:
            yield bar


def _turn(asked: MovedQuestion, number: Assumption, end: float, there: Standing) -> Turn | None:
    """Return where the lead changes between today's value and an end; None if it does not, or makes no difference."""
    if asked.lead_lost(there) < _WORTH or asked.is_like_today(there.leader):
        return None
    before, after = number.value, end
    for _ in range(_HALVINGS):
        half = sqrt(before * after)
        before, after = (before, half) if asked.lead_lost(asked.standing({number.field: half})) > 1 else (half, after)
    leader = asked.standing({number.field: after}).leader
    return Turn(after, "below" if end < number.value else "above", leader)
