"""The pictures on the pages of plans and searches: machine, first rounds, costs, speed-ups and trade-offs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from costs.cost_model import LaneCost
from costs.lane_messages import Messages
from costs.prices import Prices
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.platform import Platform
from hwprofiles.profile import Profile
from planner.page_template import picture
from planner.paired_ratio import comparer
from planner.pictures.xy_plot import Series, xy_plot
from planner.platform_plan.choices import DraftChoice
from planner.platform_plan.platform_plan import RATES, PlatformPlan
from planner.platform_plan.ranked_schedules import PlannedSchedule
from planner.report.timeline import KEY, lanes_of, pieces
from planner.wording import duration, milliseconds, si
from sim.world import simulate

_ROW: Final = 58
_LINE: Final = 16
_BOX_LEFT, _BOX_WIDTH, _WIDTH = 22, 320, 560
_MOST_DEVICES: Final = 6
_LETTER: Final = 8
_COPIES_NOTHING: Final = 1e15
"""A link with this many bytes per second or more stands for shared memory: nothing is copied."""


def machine_picture(
    platform: Platform, holds: Mapping[str, Sequence[str]], crossing_bytes: Mapping[frozenset[str], float]
) -> Markup:
    """Return a drawing of the devices below each other, with a bracket for each shared memory and arcs for links.

    `holds` has lines of text for a device, `crossing_bytes` what crosses the link between two devices in a round.
    """
    names = _shown(platform, holds)
    row = _ROW + _LINE * (max(map(len, holds.values()), default=1) - 1)
    middle = {name: row * index + row / 2 for index, name in enumerate(names)}
    links = [link for link in platform.links if set(link.between) <= set(names)]
    links.sort(key=lambda link: abs(middle[link.between[0]] - middle[link.between[1]]))
    arcs: list[dict[str, Any]] = []
    named = set[str]()
    for depth, link in enumerate(links):
        one, other = sorted(middle[end] for end in link.between)
        crossing = crossing_bytes.get(frozenset(link.between), 0.0)
        name = link.sheet or "link"
        arcs.append(
            {
                "is_named": crossing > 0 or name not in named,
                "top": one,
                "bottom": other,
                "x": _BOX_LEFT + _BOX_WIDTH + 16 + 14 * depth,
                "is_used": crossing > 0,
                "name": name,
                "speed": ", ".join(
                    si(number.value, unit)
                    for number, unit in ((link.bytes_per_s, "B/s"), (link.latency_s, "s"))
                    if number is not None and number.value < _COPIES_NOTHING
                ),
                "bytes": f"{si(crossing, 'B')} a round" if crossing else "",
            }
        )
        named.add(name)
    below = 0.0
    for arc in sorted((one for one in arcs if one["is_named"]), key=lambda one: one["top"] + one["bottom"]):
        arc["label_y"] = max((arc["top"] + arc["bottom"]) / 2 - 8, below)
        below = arc["label_y"] + _LINE * (3 if arc["bytes"] else 2) + 4
    label_x = _BOX_LEFT + _BOX_WIDTH + 30 + 14 * len(arcs)
    longest = max((len(str(one[part])) for one in arcs for part in ("name", "speed", "bytes")), default=0)
    return picture(
        Path(__file__).with_name("machine_picture.svg"),
        width=max(_WIDTH, label_x + _LETTER * longest),
        height=row * len(names),
        row=row,
        line=_LINE,
        box_left=_BOX_LEFT,
        box_width=_BOX_WIDTH,
        devices=[
            {
                "top": row * index + 6,
                "name": name,
                "sheet": platform.device(name).name,
                "holds": holds.get(name, ()),
            }
            for index, name in enumerate(names)
        ],
        memories=_memories(platform, names, middle),
        arcs=arcs,
        label_x=label_x,
        num_left_out=len(platform.devices) - len(names),
    )


def _shown(platform: Platform, holds: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the devices to draw: those that hold a model first, and those of one memory next to each other."""
    names = sorted(platform.devices, key=lambda name: name not in holds)[:_MOST_DEVICES]
    memory_of = _memory_of(platform)
    pools = list(dict.fromkeys(memory_of.get(name) or name for name in names))
    return sorted(names, key=lambda name: pools.index(memory_of.get(name) or name))


def _memory_of(platform: Platform) -> dict[str, str]:
    return {device: pool for pool, memory in platform.memory_pools.items() for device in memory.devices}


def _memories(platform: Platform, names: list[str], middle: Mapping[str, float]) -> list[dict[str, float]]:
    members: dict[str, list[float]] = {}
    for name, memory in _memory_of(platform).items():
        if name in names:
            members.setdefault(memory, []).append(middle[name])
    return [{"top": min(ends) - 20, "bottom": max(ends) + 20} for ends in members.values() if len(ends) > 1]


_RIGHT: Final = 548
_LANE: Final = 34
_ABOVE: Final = 22
NUM_ROUNDS: Final = 2


def rounds_picture(trace: Trace, schedule: Schedule) -> Markup:
    """Return a timeline of the lanes over the first rounds of a trace, in the colours of the demo's page."""
    rounds = trace.rounds[:NUM_ROUNDS]
    end_s = rounds[-1].end_s
    lanes = lanes_of(schedule)
    left = max(96, _LETTER * (2 + max(map(len, lanes))))

    def x(time_s: float) -> float:
        return round(left + time_s / end_s * (_RIGHT - left), 1)

    bars = [
        {
            "x": x(one.start_s),
            "width": max(0.6, x(one.end_s) - x(one.start_s)),
            "y": _ABOVE + _LANE * lanes.index(one.span.lane),
            "colour": KEY[one.span.work].colour,
            "is_exposed": one.exposed,
            "told": f"{KEY[one.span.work].label}, {duration(one.span.end_s - one.span.start_s)}",
        }
        for one in pieces(trace, schedule, end_s)
    ]
    used = [work for work in KEY if any(span.work is work and span.start_s < end_s for span in trace.spans)]
    return picture(
        Path(__file__).with_name("rounds_picture.svg"),
        width=_WIDTH,
        left=left,
        right=_RIGHT,
        above=_ABOVE,
        lane_height=_LANE,
        lanes=lanes,
        bars=bars,
        marks=[(x((one.start_s + one.end_s) / 2), x(one.end_s), one.num_committed, one.hit) for one in rounds],
        end=duration(end_s),
        key=[(KEY[work].colour, KEY[work].label) for work in used],
    )


_ROWS: Final = (1, 2, 3, 4, 5, 6, 8)
_MOST_LINES: Final = 4
_MOST_POINTS: Final = 8
_SLOWEST: Final = 1.5
"""Schedules slower than this many times plain decoding are not drawn: they would squeeze the others together."""
_MOST_DRAFTS: Final = 8


def machine_of(platform: Platform, profile: Profile, schedule: Schedule, models: tuple[str, str]) -> Markup:
    """Return a drawing of the platform with the devices of target and draft, and the bytes that cross in a round."""
    holds: dict[str, list[str]] = {}
    drafts = bool(schedule.num_speculative_tokens)
    lanes = schedule.target_lane, schedule.draft_lane or schedule.target_lane
    for lane, model in zip(lanes, models[: 1 + drafts], strict=False):
        members, split = platform.members(lane), LayerSplit.of(lane)
        if split is not None and model != models[0]:
            members, split = (split.last,), None
        for member in members:
            share = f", 1/{len(members)}" if len(members) > 1 else ""
            share = share if split is None else f", {split.share_of(member)}"
            holds.setdefault(member, []).append(f"{model}{share}")
    crossing: dict[frozenset[str], float] = {}
    if lanes[0] != lanes[1]:
        messages = Messages.of(schedule, profile)
        num_bytes = messages.verdict_bytes[-1] + messages.exit_bytes + messages.window_bytes[-1]
        start, end = (platform.members(lane)[0] for lane in lanes)
        for one, other in pairwise(platform.path(start, end, num_bytes)):
            crossing[frozenset((one, other))] = num_bytes
    return machine_picture(platform, holds, crossing)


def costs_over_rows(prices: Prices, lanes: Iterable[str], context: float) -> Markup:
    """Plot the time of a target pass, relative to one row, over its rows, on the first few of `lanes`."""
    profile = prices.profile
    series = []
    for lane in list(dict.fromkeys(lanes))[:_MOST_LINES]:
        part = profile.lane(lane).layer
        rows = [count for count in _ROWS if part is None or count <= max(part.rows)]
        seconds = [prices.pass_s(lane, count, context) for count in rows]
        points = [(count, at / seconds[0]) for count, at in zip(rows, seconds, strict=True)]
        series.append(Series(f"{lane}: one takes {milliseconds(seconds[0])}", points))
    return xy_plot(
        series,
        x_title="tokens verified at once",
        y_title="times one token",
        alt="A pass of the target over one of a single token, by the tokens that it verifies",
        x_ticks=_ROWS,
    )


def speedups_over_acceptance(plan: PlatformPlan, leaders: Sequence[PlannedSchedule], names: Sequence[str]) -> Markup:
    """Plot the speed-up of the leading schedules over acceptance; plain decoding is 1."""
    drafting = [pair for pair in zip(leaders, names, strict=True) if pair[0].schedule.num_speculative_tokens]
    points: dict[str, list[tuple[float, float]]] = {name: [] for _, name in drafting[:_MOST_LINES]}
    for rate in RATES:
        compare = comparer(plan.profile, plan.question.record_at(rate), plan.costs)
        for one, name in drafting[:_MOST_LINES]:
            points[name].append((100 * rate, compare(one.schedule, plan.plain.schedule).value))
    series = [Series(name, line) for name, line in points.items()]
    return xy_plot(
        series,
        x_title="drafted tokens accepted, %",
        y_title="times plain decoding",
        alt="Speed-up over plain decoding by acceptance",
        level=1.0,
    )


def drafts_over_acceptance(drafts: Sequence[DraftChoice]) -> Markup:
    """Plot every draft's speed-up over its acceptance, with a point at the assumed one and a line at the fastest."""
    plain_s = drafts[0].plan.plain.tpot_s
    drawn = [one for one in drafts if one.times_s][:_MOST_DRAFTS]
    series = [
        Series(one.name, [(100 * rate, plain_s / time_s) for rate, time_s in zip(RATES, one.times_s, strict=True)])
        for one in drawn
    ]
    today = [(100 * one.plan.question.acceptance.value, plain_s / one.best.tpot_s) for one in drawn if one.best]
    series.append(Series("as assumed", today, joined=False))
    return xy_plot(
        series,
        x_title="drafted tokens accepted, %",
        y_title="times plain decoding",
        alt="Speed-up of every draft by its acceptance",
        level=plain_s / drafts[0].plan.recommended.tpot_s,
    )


def trade_offs(leaders: Sequence[PlannedSchedule], names: Sequence[str]) -> Iterator[tuple[str, Markup]]:
    """Yield (title, plot) of energy over time, and of money over time, if data sheets give these numbers."""
    plain = (one.tpot_s for one in leaders if not one.schedule.num_speculative_tokens)
    slowest_s = _SLOWEST * min(plain, default=inf)
    for title, unit, field in (
        ("Energy", "J per token", "energy_j_per_token"),
        ("Money", "$ per million tokens", "usd_per_million_tokens"),
    ):
        amounts = [(name, one.tpot_s, getattr(one, field)) for name, one in zip(names, leaders, strict=True)]
        known = [one for one in amounts if one[2] is not None and one[1] <= slowest_s]
        known = sorted(known, key=lambda one: one[1])[:_MOST_POINTS]
        if len(known) > 1:
            labels = [name if index == 0 or name.startswith("plain") else "" for index, (name, *_) in enumerate(known)]
            points = [(1e3 * tpot_s, amount) for _, tpot_s, amount in known]
            plot = xy_plot(
                [Series("", points, joined=False, labels=labels)],
                x_title="ms per token",
                y_title=unit,
                alt=f"{title} and time of the best of every method and placement",
            )
            yield title, plot


def first_rounds(
    schedule: Schedule, profile: Profile, record: AcceptanceRecord, costs: Mapping[str, LaneCost] | None = None
) -> Markup:
    """Return a timeline of the first rounds of a schedule, simulated event by event."""
    most = min(2 * (NUM_ROUNDS + 1) * (schedule.num_speculative_tokens + 1), record.max_new_tokens)
    traces = simulate(schedule, profile, record, max_new_tokens=most, costs=costs)
    return rounds_picture(traces[0], schedule)
