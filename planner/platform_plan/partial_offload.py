"""A target that is too large for a card: some layers there, the rest on the CPU, as llama.cpp's `-ngl` splits them.

It is worked out beside the ranking, from the same costs: both parts of a pass take turns, and so does the draft, which
is on the card. Times have no interval.
"""

from dataclasses import dataclass
from typing import Final

from costs.round_plan import DRAFT_STEP, LAYER, LM_HEAD
from decoding.schedule import Schedule
from hwprofiles.engines import engine_on
from hwprofiles.models.head_shapes import IN_ONE_PASS, LOOKUP
from hwprofiles.placed import PlacedDevice
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.platform_plan import PlatformPlan, demand_of
from planner.platform_plan.runs_on import runs_on
from planner.wording import factor, tokens_per_second
from sim.derived.derived_profile import lane_cost

_ENGINE: Final = "llama.cpp"
_STATE_BYTES: Final = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PartialOffload:
    """The split that fits, and the best draft length there.

    Attributes:
        card, cpu: lanes.
        num_layers, of_layers: layers on the card, and of the target.
        plain_tpot_s: time per token of plain decoding.
        num_drafted, tpot_s: draft length of the fastest speculation, and its time per token; 0 drafted where none pays.
        options: llama.cpp's command.
    """

    card: str
    cpu: str
    num_layers: int
    of_layers: int
    plain_tpot_s: float
    num_drafted: int
    tpot_s: float
    options: str

    @property
    def in_words(self) -> str:
        """A sentence."""
        plain = tokens_per_second(self.plain_tpot_s)
        gain = f"{tokens_per_second(self.tpot_s)} with {self.num_drafted} drafted, {plain} without"
        speed = f"{gain} ({factor(self.plain_tpot_s / self.tpot_s)})" if self.num_drafted else f"{plain}, plain"
        return (
            f"Faster than all of the table: {self.num_layers} of {self.of_layers} layers on {self.card} and the rest "
            f"on {self.cpu}, {speed}"
        )


def partial_offload(plan: PlatformPlan) -> PartialOffload | None:
    """Return the split of a dense target over a card that cannot hold it and a CPU that can; None if nothing gains."""
    question, platform, target = plan.question, plan.question.platform, plan.question.target
    plain = [need for need in plan.needs if need.is_plain and need.pair.target in platform.devices]
    cards = [need for need in plain if not need.fits and _is_card(platform.device(need.pair.target), target.weights)]
    cpus = [need.pair.target for need in plain if need.fits and platform.device(need.pair.target).kind == "cpu"]
    if len(cards) != 1 or not cpus or target.shape.num_experts:
        return None
    card, cpu, of_layers = cards[0].pair.target, cpus[0], target.shape.num_layers
    layer_bytes = target.shape.layer_weight_bytes(target.weights) + target.kv_bytes(question.num_tokens) / of_layers
    draft_bytes = question.draft.shape.weight_bytes(question.draft.weights) + question.draft.kv_bytes(
        question.num_tokens
    )
    num_layers = int(((cards[0].capacity_bytes or 0.0) - draft_bytes) / layer_bytes)
    if not 0 < num_layers < of_layers:
        return None
    times_s = _times_s(plan, card, cpu, num_layers)
    best = min(times_s, key=lambda one: times_s[one])
    if times_s[best] >= plan.recommended.tpot_s:
        return None
    there = best.model_copy(update={"target_lane": card, "draft_lane": best.draft_lane and card})
    alone, head = LanePair.alone(card), question.draft.head
    engines = runs_on(platform, alone, there, head, weights=(target.weights,), cache_bits=target.cache_bits)
    options = next((one.options for one in engines if one.engine == _ENGINE), None)
    if options is None:
        return None
    return PartialOffload(
        card=card,
        cpu=cpu,
        num_layers=num_layers,
        of_layers=of_layers,
        plain_tpot_s=next(time_s for one, time_s in times_s.items() if not one.num_speculative_tokens),
        num_drafted=best.num_speculative_tokens,
        tpot_s=times_s[best],
        options=options.replace("TARGET.gguf", f"TARGET.gguf -ngl {num_layers}", 1),
    )


def _is_card(device: PlacedDevice, weights: str) -> bool:
    """Return whether it is a GPU with memory of its own on which people run llama.cpp with such weights."""
    engine = engine_on(device, weights) or ""
    return device.kind == "gpu" and device.memory_pool is None and engine.startswith(_ENGINE)


def _times_s(plan: PlatformPlan, card: str, cpu: str, num_layers: int) -> dict[Schedule, float]:
    """Return seconds per token of plain decoding and of chains in turn, by schedules of other places."""
    question, platform = plan.question, plan.question.platform
    shape, context = question.target.shape, float(question.record.contexts.start)
    demand = demand_of(question, [card, cpu])
    fast, slow = (lane_cost(platform, demand, lane) for lane in (card, cpu))

    def pass_s(rows: int) -> float:
        on_card, on_cpu = (cost.one(LAYER, rows, context) for cost in (fast, slow))
        crossing_s = platform.transfer_s(cpu, card, rows * shape.width * _STATE_BYTES)
        layers_s = num_layers * on_card + (shape.num_layers - num_layers) * on_cpu
        return layers_s + slow.one(LM_HEAD, rows, context) + 2 * crossing_s

    found = {plan.plain.schedule: pass_s(1)}
    for one in plan.speculation:
        schedule, head = one.schedule, question.draft.head
        is_chain = schedule.num_rows == schedule.num_speculative_tokens + 1 and not schedule.draft_streams
        if not is_chain or schedule.traits.overlaps or head in IN_ONE_PASS.keys() - {LOOKUP}:
            continue
        drafting_s = 0.0 if head == LOOKUP else schedule.fewest_draft_steps * fast.one(DRAFT_STEP, 1, context)
        round_s = pass_s(schedule.num_rows) + drafting_s + plan.profile.round_overhead_s
        found[schedule] = round_s / one.prediction.mean_acceptance_length
    return found
