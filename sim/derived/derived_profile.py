"""Derives the profile of a machine that nobody measured: lanes and links from data sheets, costs from rooflines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Final

from pydantic import ValidationError

from costs.cost_model import LaneCost
from costs.round_plan import LAYER
from costs.split_cost import Handover, SplitCost, SplitPart
from decoding.errors import ProfileError, mistake
from hwprofiles.engines import engine_of_cpus, priced
from hwprofiles.lane_profile import DeviceGroup, LaneProfile
from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.models.head_shapes import LOOKUP
from hwprofiles.platform import Platform
from hwprofiles.profile import BYTES_PER_CANDIDATE, Profile
from hwprofiles.quantity import CALIBRATION
from sim.derived.assumption import Assumption
from sim.derived.calibrated_lanes import CalibratedLanes
from sim.derived.derived_contention import POOL_EFFICIENCY, are_streams, contentions, streams_slowdown
from sim.derived.derived_links import NO_COPY_BYTES_PER_S, links_of, numbers_of_links, path_speed
from sim.derived.device_speed import DeviceSpeed, device_speed
from sim.derived.roofline import TYPICAL_CONTEXT, RooflineCost, StoredModel

ROUND_OVERHEAD: Final = Assumption.shipped("host.round_overhead_s")
"""The driver's time between a verdict and the next operation."""
CONSTANTS: Final = (ROUND_OVERHEAD.field, POOL_EFFICIENCY.field)
"""Fields of the assumptions that belong to no part of a platform."""
_STATE_BYTES: Final = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What a derived profile has to cover.

    Attributes:
        lanes: devices, groups or layer splits of the platform.
        exits: target layers after which an early exit may be taken.
        calibrated: measured lanes; None if there are none.
        constants: what-if values for `CONSTANTS` and for numbers of devices, by field.
        pairs: pairs of lanes that exchange messages; None for all pairs that can work at once.
        context: cached tokens at which the errors of times hold.
    """

    target: StoredModel
    draft: StoredModel
    lanes: Sequence[str]
    exits: tuple[int, ...]
    calibrated: CalibratedLanes | None = None
    constants: Mapping[str, float] = field(default_factory=dict)
    pairs: frozenset[frozenset[str]] | None = None
    context: float = TYPICAL_CONTEXT

    def constant(self, known: Assumption) -> Assumption:
        """Return one of the `CONSTANTS`, with its what-if value if there is one."""
        given = self.constants.get(known.field)
        return known if given is None else Assumption.of(known.field, given, "guessed", f"what if: {known.source}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DerivedProfile:
    """A derived profile with the costs of its lanes, the speeds of derived devices, and all assumptions made."""

    profile: Profile
    costs: Mapping[str, LaneCost]
    speeds: Mapping[str, DeviceSpeed]
    assumptions: tuple[Assumption, ...]

    def shares(self, lane: str) -> Mapping[str, float]:
        """Return the lanes that a target pass runs on, with their shares of its time: one, or a split's devices."""
        cost = self.costs[lane]
        return cost.shares if isinstance(cost, SplitCost) else {lane: 1.0}

    def relative_error(self, lane: str, errors: Mapping[str, float]) -> float:
        """Return the relative error of a target pass, from the errors of the lanes of `shares`."""
        cost = self.costs[lane]
        return cost.relative_error(errors) if isinstance(cost, SplitCost) else errors.get(lane, 0.0)

    def __repr__(self) -> str:
        """Show names only: the numbers would fill pages."""
        return f"<DerivedProfile of {', '.join(self.costs)}: {len(self.assumptions)} assumptions>"


def derived_profile(platform: Platform, demand: Demand) -> DerivedProfile:
    """Return the derived profile of a platform; whether the models fit into memory is not checked.

    Raises:
        ProfileError: a lane is no device or group, a sheet lacks a required number, two lanes are not linked, or a
            result is outside the plausible range (`hwprofiles.bounds`).
    """
    try:
        return _derived(platform, demand)
    except ValidationError as error:
        first, *_ = error.errors(include_url=False)
        msg = f"{demand.target} with {demand.draft} on {platform.name}: {error.title} comes out as no machine has it"
        raise ProfileError(f"{msg} ({mistake(first)}); look through the platform's numbers") from error


def _derived(platform: Platform, demand: Demand) -> DerivedProfile:
    splits = {name: split for name in demand.lanes if (split := LayerSplit.of(name)) is not None}
    whole = [name for name in demand.lanes if name not in splits]
    named = dict.fromkeys([*whole, *(device for split in splits.values() for device in split.devices)])
    derived = {name: lane_cost(platform, demand, name) for name in named}
    lanes = demand.calibrated
    calibrated = {} if lanes is None else {name: lanes for name in named if name in lanes.names}
    costs: dict[str, LaneCost] = derived | {name: one.cost(name, derived[name]) for name, one in calibrated.items()}
    groups = {name: device_group(platform, demand, name) for name in named}
    at_once = _pairs_at_once(platform, demand, whole)
    timed = [pair for pair in at_once if calibrated.keys() >= set(pair)]
    pairs = [pair for pair in at_once if pair not in timed]
    has_mixture = any(model.shape.num_experts for model in (demand.target, demand.draft))
    assumptions = [
        one
        for name, cost in derived.items()
        for one in (calibrated[name].assumptions(cost) if name in calibrated else cost.device.assumptions)
        if has_mixture or one.number != "starts_of_mixtures"
    ]
    assumptions += [streams_slowdown(platform, *pair) for pair in pairs if are_streams(*pair)]
    overhead, pool = demand.constant(ROUND_OVERHEAD), demand.constant(POOL_EFFICIENCY)
    profile = Profile(
        host={"platform": platform.name},
        target=demand.target.shape.name,
        drafter=demand.draft.shape.name,
        dtype=demand.target.weights,
        num_layers=demand.target.shape.num_layers,
        lanes=tuple(_lane(name, platform, cost, groups[name]) for name, cost in derived.items()),
        links=tuple(links_of(platform, pairs)),
        contention=tuple(contentions(platform, derived, groups, pairs, pool)),
        round_overhead_s=overhead.value,
        notes=("Worked out from the numbers of a platform: nothing was timed for this profile.",),
    )
    if demand.calibrated is not None:
        profile = demand.calibrated.beside(profile, timed)
        if overhead is not ROUND_OVERHEAD:
            profile = profile.model_copy(update={"round_overhead_s": overhead.value})
        else:
            overhead = Assumption.of(overhead.field, profile.round_overhead_s, "measured", CALIBRATION)
    by_name = {lane.name: lane for lane in profile.lanes}
    split_costs = {name: split_cost(platform, demand, split, costs, by_name) for name, split in splits.items()}
    split_lanes = [_split_lane(name, cost, by_name) for name, cost in split_costs.items()]
    crossed = [*pairs, *dict.fromkeys(ends for split in splits.values() for ends in _ways(split, demand.target))]
    used = (*assumptions, *numbers_of_links(platform, crossed), pool, overhead)
    return DerivedProfile(
        profile=profile.model_copy(update={"lanes": (*profile.lanes, *split_lanes)}) if splits else profile,
        costs=costs | split_costs,
        speeds={
            name: cost.device
            for name, cost in derived.items()
            if name not in calibrated or not calibrated[name].has_target
        },
        assumptions=tuple(dict.fromkeys(used)),
    )


def _pairs_at_once(platform: Platform, demand: Demand, lanes: Sequence[str]) -> list[tuple[str, str]]:
    """Return the demanded pairs of lanes (no layer splits) that can work at once."""
    if demand.draft.head is not None:  # draft heads run on the target's lane
        return []
    asked = (pair for pair in combinations(lanes, 2) if demand.pairs is None or {*pair} in demand.pairs)
    return [pair for pair in asked if are_streams(*pair) or platform.are_apart(*pair)]


def lane_cost(platform: Platform, demand: Demand, name: str) -> RooflineCost:
    """Return the costs of a lane; a group is as slow as its slowest member, and its members share memories equally."""
    members, each = platform.members(name), []
    for member in _unlike(platform, demand, members):
        _, pool = platform.pool_of(member)
        speed = speed_on(platform, member, demand.target, demand.constants, num_together=len(members))
        part = min(speed.bytes_per_s, pool.bytes_per_s.value / len({*pool.devices} & {*members}))
        device = replace(speed, name=name, bytes_per_s=part)
        of = RooflineCost(device=device, target=demand.target, draft=demand.draft, exits=demand.exits)
        each.append(replace(of, num_devices=len(members), context=demand.context))
    slowest = max(each, key=lambda cost: cost.one(LAYER, 1, TYPICAL_CONTEXT))
    speeds = [cost.device for cost in each]
    bytes_per_s = min(one.bytes_per_s for one in speeds)
    device = replace(
        slowest.device,
        bytes_per_s=bytes_per_s,
        cache_efficiency=min(one.bytes_per_s * one.cache_efficiency for one in speeds) / bytes_per_s,
        flops=min(one.flops for one in speeds),
        kernel_s=max(one.kernel_s for one in speeds),
        graph_s=max(one.graph_s for one in speeds),
        engine_step_s=max(one.engine_step_s for one in speeds),
    )
    return replace(slowest, device=device)


def split_cost(
    platform: Platform,
    demand: Demand,
    split: LayerSplit,
    costs: Mapping[str, LaneCost],
    lanes: Mapping[str, LaneProfile],
) -> SplitCost:
    """Return the costs of a layer split, from the costs and profiles of its devices (by name)."""
    shape, order = demand.target.shape, _order(split)
    experts = split.experts_on(shape.dense_layers)
    return SplitCost(
        parts=tuple(
            SplitPart(
                device,
                costs[device],
                split.layers.get(device, split.num_left),
                experts[device] / shape.expert_share,
                lanes[device].errs_as,
            )
            for device in order
        ),
        handovers=tuple(
            Handover(count, *path_speed(platform, *ends)) for ends, count in _ways(split, demand.target).items()
        ),
        state_bytes=shape.width * _STATE_BYTES,
        shape=shape,
        weights=demand.target.weights,
        has_host=split.cpu is not None,
    )


def _order(split: LayerSplit) -> list[str]:
    """Return a split's devices in the order in which a pass visits them."""
    return [*([split.cpu] if split.cpu else []), *split.layers]


def _ways(split: LayerSplit, target: StoredModel) -> dict[tuple[str, str], int]:
    """Return by (from, to) how often a pass sends states: to the next device, and to experts on the CPU and back."""
    counts = dict.fromkeys(pairwise(_order(split)), 1)
    for card, count in split.apart_on(target.shape.dense_layers).items():
        for ends in ((card, split.cpu), (split.cpu, card)) if split.cpu and count else ():
            counts[ends] = counts.get(ends, 0) + count
    return counts


def _unlike(platform: Platform, demand: Demand, members: Sequence[str]) -> Iterator[str]:
    """Yield the members of a group without those that equal an earlier one except for the name."""
    known: list[object] = []
    for member in members:
        _, pool = platform.pool_of(member)
        moved = {name.rpartition(".") for name in demand.constants}
        own = (
            platform.device(member),
            pool.model_copy(update={"devices": ()}),
            len({*pool.devices} & {*members}),
            {field: demand.constants[f"{part}.{field}"] for part, _, field in moved if part == member},
        )
        if own not in known:
            known.append(own)
            yield member


def device_group(platform: Platform, demand: Demand, name: str) -> DeviceGroup | None:
    """Return the communication of a lane's members, paced by the slowest path of their ring; None for one device."""
    members = platform.members(name)
    if len(members) == 1:
        return None
    pairs = [*pairwise((*members, members[0]))]
    ring = [path_speed(platform, *pair, collective=True) for pair in pairs]
    hops = {hop for pair in pairs for hop in pairwise(platform.path(*pair))}
    num_links = min(len(members) - 1, *(platform.link(*hop).mesh_links or 1 for hop in hops))
    step = max(latency_s for latency_s, _ in ring), num_links * min(bytes_per_s for _, bytes_per_s in ring)
    return exchanges(demand.target, demand.draft, len(members), step, f"links of {platform.name}")


def exchanges(
    target: StoredModel, draft: StoredModel, num_devices: int, step: tuple[float, float], source: str
) -> DeviceGroup:
    """Return the communication of a group for two models; `step` is (latency in s, bytes/s) of a collective's step.

    All-reduces: two per layer of a tensor-parallel model, one per segment of a model of parallel tracks, and one per
    Medusa head. All-gathers: the candidates of each `lm_head`. The draft's states count as wide as the target's.
    """
    num_reduces, num_gathers = _exchanges(draft)
    return DeviceGroup(
        num_devices=num_devices,
        latency_s=step[0],
        bytes_per_s=min(NO_COPY_BYTES_PER_S, step[1]),
        reduced_bytes_per_row=target.shape.width * _STATE_BYTES,
        gathered_bytes_per_row=num_devices * BYTES_PER_CANDIDATE,
        all_reduces={
            "layer": 2,
            "prefill": _exchanges(target)[0],
            **dict.fromkeys(("draft_step", "draft_prefill", "draft_reads", "heads", "head_prefill"), num_reduces),
        },
        all_gathers={"lm_head": 1, "exit": 1, "draft_step": num_gathers, "heads": num_gathers},
        source=source,
    )


def _exchanges(model: StoredModel) -> tuple[int, int]:
    """Return the numbers of (all-reduces, all-gathers) in a pass of a model; prompt lookup has none."""
    shape = model.shape
    if model.head == LOOKUP:
        return 0, 0
    if model.head == "medusa":
        return shape.num_layers, shape.num_layers
    return shape.num_segments if shape.num_tracks > 1 else 2 * shape.num_layers, 1


def speed_on(
    platform: Platform,
    device: str,
    model: StoredModel | None = None,
    numbers: Mapping[str, float] | None = None,
    *,
    num_together: int = 1,
) -> DeviceSpeed:
    """Return the speed of a device: with a model by the public curves of its engine, and with what-if `numbers`.

    `num_together`: devices that the model is split over. Raises as `device_speed` and `Platform.pool_of`.
    """
    sheet = platform.device(device)
    by_curves, weights = (None, None) if model is None else (priced(sheet, model.shape, model.weights), model.weights)
    peak = platform.reading_peak(device)
    if sheet.kind == "cpu" and sheet.engine is None:  # set after `priced`, so that curves of that engine do not count
        sheet = sheet.model_copy(update={"engine": engine_of_cpus(platform, weights)})
    speed = device_speed(device, sheet, peak, by_curves, weights, numbers, num_together=num_together)
    return replace(speed, bytes_per_s=min(speed.bytes_per_s, platform.pool_of(device)[1].bytes_per_s.value))


def _lane(name: str, platform: Platform, cost: RooflineCost, group: DeviceGroup | None) -> LaneProfile:
    """Return a lane without tables; lanes of equal devices have the same error (`errs_with`)."""
    members = platform.members(name)
    device = " + ".join(dict.fromkeys(platform.device(member).name for member in members))
    return LaneProfile(
        name=name,
        device=device,
        kind=platform.device(members[0]).kind,
        errs_with=f"{device} of {cost.device.bytes_per_s:.6g} bytes/s and {cost.device.flops:.6g} FLOP/s",
        devices=members,
        dispatch_s=cost.device.graph_s,
        group=group,
        relative_error=cost.device.reading_error,
    )


def _split_lane(name: str, cost: SplitCost, lanes: Mapping[str, LaneProfile]) -> LaneProfile:
    """Return the lane of a layer split; its error is that of its devices, each by its share of a pass."""
    parts = [lanes[one.device] for one in cost.parts]
    return LaneProfile(
        name=name,
        device=" + ".join(lane.device for lane in parts),
        kind=parts[-1].kind,
        errs_with=" + ".join(dict.fromkeys(one.errs_as for one in cost.parts)),
        devices=tuple(lane.name for lane in parts),
        dispatch_s=sum(lane.dispatch_s for lane in parts),
        relative_error=cost.relative_error({lane.name: lane.relative_error for lane in parts}),
    )
