"""Public measurements of machines that nobody here has, next to what data sheets predict of them: hits and misses.

    python benchmarks/public_measurements.py

Prints the table of docs/platforms.md, and how many are met.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import yaml
from _common import least_rate

from costs.contention import PairContention
from costs.cost_model import Part
from decoding.schedule import Schedule
from hwprofiles.model_shape import model_shape
from hwprofiles.overrides import with_overrides
from hwprofiles.platform import Platform, load_platform
from hwprofiles.weights.formats import WeightFormat
from planner.wording import counted, factor
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts
from sim.batch_prediction import BatchPredictor
from sim.derived.derived_contention import POOL_EFFICIENCY
from sim.derived.derived_profile import Demand, derived_profile, lane_cost
from sim.derived.roofline import RooflineCost, StoredModel
from sim.evaluator import Evaluator

Unit = Literal["tokens/s", "times", "share"]

_FILE = Path(__file__).parent / "public-measurements.yaml"
"""Four kinds of measurements; the head of the file says what their fields mean."""
_DEFAULTS: dict[str, Any] = {
    "note": "",
    "set": {},
    "draft_on": None,
    "draft_weights": None,
    "window": 0,
    "share": 0.0,
    "adapts": False,
    "sequences": 1,
}
Measurement = SimpleNamespace
_ROUNDS_TO_SETTLE = 200
_TEXTS = Texts(num_texts=16, num_tokens=128, prompt_length=128)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """One measurement and its prediction; `is_met` is whether they agree within the stated tolerance."""

    case: str
    source: str
    measured: float
    predicted: float
    tolerance: float
    unit: Unit
    note: str

    @property
    def is_met(self) -> bool:
        """Relative for speeds, absolute for shares."""
        error = self.predicted - self.measured
        return abs(error if self.unit == "share" else error / self.measured) <= self.tolerance

    @property
    def outcome(self) -> str:
        """`within 15 %` of what was measured, or `missed`."""
        unit = "points" if self.unit == "share" else "%"
        return f"within {100 * self.tolerance:.0f} {unit}" if self.is_met else "missed"


def measurements(kind: str) -> list[Measurement]:
    """Return the measurements of a kind as the file has them."""
    found = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return [Measurement(**_DEFAULTS | one) for one in found[kind]]


@cache
def public_evidence() -> tuple[Checked, ...]:
    """Predict everything of the file."""
    kinds = {"speeds": _speed, "handovers": _handover, "overlaps": _overlap, "contention": _loss}
    return tuple(predict(one) for kind, predict in kinds.items() for one in measurements(kind))


def evidence_in_words() -> str:
    """How many of all are met."""
    found = public_evidence()
    missed = sum(not one.is_met for one in found)
    return (
        f"Plans were compared with {counted(len(found), 'public measurement')} of machines that nobody here has: "
        f"{len(found) - missed} are within their tolerance, {missed} missed."
    )


def evidence_table() -> str:
    """All of it in Markdown."""
    rows = [
        (f"{one.case} ({one.source})", in_unit(one.measured, one), in_unit(one.predicted, one), one.outcome, one.note)
        for one in public_evidence()
    ]
    lines = [("case and source", "measured", "predicted", "", "note"), ("---", "---:", "---:", "---", "---"), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def in_unit(value: float, evidence: Checked) -> str:
    """A number of some evidence as people write it."""
    if evidence.unit == "tokens/s":
        return f"{value:.1f} tokens/s"
    return factor(value) if evidence.unit == "times" else f"{value * 100:+.0f} %".replace("-", "\u2212")


def rate_of_length(length: float, window: int) -> float:
    """The rate of every place at which a round of so many drafted tokens brings that many: 1 + a + a^2 + ..."""
    return rate_of_share((length - 1) / window, window)


def rate_of_share(share: float, window: int, *, adapts: bool = False) -> float:
    """The rate of every place at which that share of what is drafted is accepted: (a + a^2 + ...) / window.

    `adapts` is whether the window follows what is accepted, see `window_shares`.
    """

    def is_enough(rate: float) -> bool:
        often = dict(enumerate(window_shares(rate, window), 1)) if adapts else {window: 1.0}
        accepted = sum(one * sum(rate**place for place in range(1, drafted + 1)) for drafted, one in often.items())
        return accepted >= share * sum(drafted * one for drafted, one in often.items())

    return least_rate(is_enough)


def window_shares(rate: float, window: int) -> list[float]:
    """How often a loop drafts 1, 2, .. tokens whose window follows what is accepted, at that rate of every place.

    After a window that was accepted whole it drafts two more, at most twice `window`, else one fewer, at least one:
    that of OpenVINO GenAI with an NPU (`StatefulSpeculativeLLMPipeline`), whatever number of tokens is asked for.
    """
    most = 2 * window
    shares = [1 / most] * most
    for _ in range(_ROUNDS_TO_SETTLE):
        following = [0.0] * most
        for drafted, share in enumerate(shares, 1):
            whole = rate**drafted
            following[min(drafted + 2, most) - 1] += whole * share
            following[max(drafted - 1, 1) - 1] += (1 - whole) * share
        shares = following
    return shares


def _speed(one: Measurement) -> Checked:
    platform, demand = _platform(one.platform, one.set), _demand(one)
    machine = derived_profile(platform, demand)
    rate = rate_of_share(one.share, one.window, adapts=one.adapts) if one.window else 0.0
    often = window_shares(rate, one.window) if one.adapts else [1.0]
    plain, *drafting = _schedules(one, demand)
    widths = range(1, len(often) + 1) if one.adapts else (one.window,)
    schedules = [base.model_copy(update={"num_speculative_tokens": width}) for base in drafting for width in widths]
    evaluator = Evaluator(machine.profile, Bernoulli(rate, texts=_TEXTS), costs=machine.costs)
    alone, *found = map(evaluator.predict, [plain, *schedules])
    predicted = 1 / alone.tpot_s
    if found:
        rounds_s = sum(share * each.decode_s / each.num_rounds for share, each in zip(often, found, strict=True))
        tokens = sum(share * each.num_tokens / each.num_rounds for share, each in zip(often, found, strict=True))
        predicted = alone.tpot_s * tokens / rounds_s
    return _evidence(one, predicted, "times" if found else "tokens/s")


def _handover(one: Measurement) -> Checked:
    platform, shape = _platform(one.platform, {}), model_shape(one.target)

    def cost(lane: str, weights: WeightFormat) -> RooflineCost:
        model = StoredModel(shape=shape, weights=weights)
        return lane_cost(platform, Demand(target=model, draft=model, lanes=[lane], exits=()), lane)

    reading, decoding = cost(one.read_on, one.read_weights), cost(one.decode_on, one.weights)
    prefill_s = reading.one(Part("prefill"), one.prompt, 0.0) + reading.device.graph_s
    step_s = shape.num_layers * decoding.one(Part("layer"), 1, one.prompt) + decoding.one(Part("lm_head"), 1, 0.0)
    return _evidence(one, one.tokens * step_s / (prefill_s + one.tokens * step_s), "times")


def _platform(found: str | dict[str, Any], changes: dict[str, str | float]) -> Platform:
    platform = load_platform(found) if isinstance(found, str) else Platform.model_validate(found)
    return with_overrides(platform, changes) if changes else platform


def _overlap(one: Measurement) -> Checked:
    platform, demand = load_platform(one.platform), _demand(one)
    machine = derived_profile(platform, demand)
    plain, in_turn = _schedules(one, demand)
    settings: dict[str, Any] = {"method": "mirror", "root_source": "draft", "draft_top_k": one.top_k}
    at_once = Schedule.model_validate(in_turn.model_dump() | settings)
    nothing = Evaluator(machine.profile, Bernoulli(0.0, texts=_TEXTS), costs=machine.costs)
    plain_s, round_s = map(nothing.tpot_s, [plain, in_turn])
    # with nothing accepted a round brings one token: with so many it is as fast as it was measured
    tokens = one.in_turn * round_s / plain_s
    others = tuple(one.hits for _ in range(one.top_k))
    record = Bernoulli(rate_of_length(tokens, one.window), texts=_TEXTS, alternative_rates=others)
    turn_s, alone_s = map(Evaluator(machine.profile, record, costs=machine.costs).tpot_s, [in_turn, at_once])
    predicted = turn_s / alone_s
    if one.sequences > 1:
        together = BatchPredictor(machine.profile, record, costs=machine.costs).predict(at_once, one.sequences)
        predicted = together.tokens_per_s * alone_s
    return _evidence(one, predicted, "times")


def _demand(one: Measurement) -> Demand:
    return Demand(
        target=StoredModel(shape=model_shape(one.target), weights=one.weights),
        draft=StoredModel(shape=model_shape(one.draft), weights=one.draft_weights or one.weights),
        lanes=list(dict.fromkeys(lane for lane in (one.target_on, one.draft_on) if lane)),
        exits=(),
    )


def _schedules(one: Measurement, demand: Demand) -> Iterator[Schedule]:
    yield Schedule(method="autoregressive", target_lane=one.target_on)
    if one.draft_on is not None:
        yield Schedule(
            method="speculative",
            target_lane=one.target_on,
            draft_lane=one.draft_on,
            num_speculative_tokens=one.window,
            drafter=demand.draft.shape.name,
        )


def _loss(one: Measurement) -> Checked:
    if hasattr(one, "wanted_bytes_per_s"):
        pair = PairContention(1.0, 1.0, POOL_EFFICIENCY.value * one.pool_bytes_per_s)
        stretch, _ = pair.slowdown_of_two(*one.wanted_bytes_per_s)
        predicted = 1 / stretch - 1
    else:
        predicted = -one.share_of_device
    return _evidence(one, predicted, "share")


def _evidence(one: Measurement, predicted: float, unit: Unit) -> Checked:
    shared = {name: getattr(one, name) for name in ("case", "source", "measured", "tolerance", "note")}
    return Checked(predicted=predicted, unit=unit, **shared)


if __name__ == "__main__":
    print(evidence_table())
    print(evidence_in_words())
