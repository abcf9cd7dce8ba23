"""Public measurements of machines that nobody here has, next to what data sheets predict of them: hits and misses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from decoding.schedule import Schedule
from decoding.yaml_file import StrictModel, load_yaml
from hwprofiles.model_shape import WeightFormat, model_shape
from hwprofiles.overrides import with_overrides
from hwprofiles.platform import Platform, load_platform
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts
from sim.batch.batch_prediction import predict_batch
from sim.cost.derived_profile import POOL_EFFICIENCY, Demand, derived_profile, lane_cost
from sim.cost.fair_shares import stretches
from sim.cost.roofline import StoredModel
from sim.evaluator import evaluate

Unit = Literal["tokens/s", "times", "share"]

_FILE = Path(__file__).parent / "evidence.yaml"
_TEXTS = Texts(num_texts=16, num_tokens=128, prompt_length=128)


class MeasuredSpeed(StrictModel):
    """A speed, or a ratio of two, of a draft and a target in turn.

    Attributes:
        case, source, note: what it is, whose it is, and what has to be said of it.
        platform: a shipped one, or its data.
        set: changes of it, as in `with_overrides`.
        target, draft, weights, draft_weights: the models.
        target_on, draft_on: lanes; without the latter plain decoding is meant, in tokens/s.
        window, share: drafted tokens, and the share of them that is accepted.
        measured: tokens/s, or times plain decoding.
        tolerance: relative.
    """

    case: str
    source: str
    platform: str | dict[str, Any]
    set: dict[str, str | float] = Field(default={})
    target: str
    draft: str
    weights: WeightFormat
    draft_weights: WeightFormat | None = None
    target_on: str
    draft_on: str | None = None
    window: int = 0
    share: float = 0.0
    measured: float
    tolerance: float
    note: str = ""


class MeasuredContention(StrictModel):
    """What a device loses while another one works: of two on one memory, or of two that take turns on one device.

    Attributes:
        case, source, note: as in `MeasuredSpeed`.
        pool_bytes_per_s: bandwidth of the memory by its data sheet.
        wanted_bytes_per_s: what either draws alone; None where they share the device.
        share_of_device: of the device's time that the other one takes.
        measured: share of its speed, negative.
        tolerance: in shares.
    """

    case: str
    source: str
    pool_bytes_per_s: float
    wanted_bytes_per_s: tuple[float, float] | None = None
    share_of_device: float | None = None
    measured: float
    tolerance: float
    note: str = ""


class MeasuredOverlap(StrictModel):
    """Drafting next to verifying (mirror, roots of the draft) of a pair that was measured in turn too.

    What was accepted is not published: it is taken to be what makes drafting in turn as fast as it was measured.

    Attributes:
        case, source, note, platform, target, draft, weights, target_on, draft_on, window, tolerance: as in
            `MeasuredSpeed`.
        top_k: roots for every drafted token.
        hits: how often the target's own token is assumed to be among them, where it refuses the drafted one.
        in_turn: measured times plain decoding, of one sequence.
        sequences: at once.
        measured: of one sequence times drafting in turn; of several, tokens/s of all over those of one.
    """

    case: str
    source: str
    platform: str
    target: str
    draft: str
    weights: WeightFormat
    target_on: str
    draft_on: str
    window: int
    top_k: int
    hits: float
    in_turn: float
    sequences: int = 1
    measured: float
    tolerance: float
    note: str = ""


class EvidenceFile(StrictModel):
    """All of it."""

    speeds: Annotated[tuple[MeasuredSpeed, ...], Field(min_length=1)]
    overlaps: tuple[MeasuredOverlap, ...]
    contention: tuple[MeasuredContention, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
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


@cache
def public_evidence() -> tuple[Evidence, ...]:
    """Predict everything of the file."""
    found = load_yaml(_FILE, EvidenceFile)
    return (*map(_speed, found.speeds), *map(_overlap, found.overlaps), *map(_loss, found.contention))


def rate_of_length(length: float, window: int) -> float:
    """The rate of every place at which a round of so many drafted tokens brings that many: 1 + a + a^2 + ..."""
    return rate_of_share((length - 1) / window, window)


def rate_of_share(share: float, window: int) -> float:
    """The rate of every place at which that share of so many drafted tokens is accepted: (a + a^2 + ...) / window."""
    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if sum(rate**place for place in range(1, window + 1)) / window < share else (low, rate)
    return rate


def _speed(one: MeasuredSpeed) -> Evidence:
    platform = load_platform(one.platform) if isinstance(one.platform, str) else Platform.model_validate(one.platform)
    platform = with_overrides(platform, one.set) if one.set else platform
    demand = _demand(one)
    profile = derived_profile(platform, demand).profile
    acceptance = Bernoulli(rate_of_share(one.share, one.window) if one.window else 0.0, texts=_TEXTS)
    plain_s, *drafting_s = (
        prediction.tpot_s for prediction in evaluate(list(_schedules(one, demand)), profile, acceptance)
    )
    if not drafting_s:
        return _evidence(one, 1 / plain_s, "tokens/s")
    return _evidence(one, plain_s / drafting_s[0], "times")


def _overlap(one: MeasuredOverlap) -> Evidence:
    platform, demand = load_platform(one.platform), _demand(one)
    profile = derived_profile(platform, demand).profile
    plain, in_turn = _schedules(one, demand)
    settings: dict[str, Any] = {"method": "mirror", "root_source": "draft", "draft_top_k": one.top_k}
    at_once = Schedule.model_validate(in_turn.model_dump() | settings)
    plain_s, round_s = (found.tpot_s for found in evaluate([plain, in_turn], profile, Bernoulli(0.0, texts=_TEXTS)))
    # with nothing accepted a round brings one token: with so many it is as fast as it was measured
    tokens = one.in_turn * round_s / plain_s
    others = tuple(one.hits for _ in range(one.top_k))
    record = Bernoulli(rate_of_length(tokens, one.window), texts=_TEXTS, alternative_rates=others)
    turn, alone = evaluate([in_turn, at_once], profile, record)
    predicted = turn.tpot_s / alone.tpot_s
    if one.sequences > 1:
        costs = {name: lane_cost(platform, demand, name) for name in demand.lanes}
        together = predict_batch(at_once, profile, record, batch_size=one.sequences, costs=costs)
        predicted = together.tokens_per_s * alone.tpot_s
    return _evidence(one, predicted, "times")


def _demand(one: MeasuredSpeed | MeasuredOverlap) -> Demand:
    draft_weights = one.draft_weights if isinstance(one, MeasuredSpeed) else None
    return Demand(
        target=StoredModel(shape=model_shape(one.target), weights=one.weights),
        draft=StoredModel(shape=model_shape(one.draft), weights=draft_weights or one.weights),
        lanes=list(dict.fromkeys(lane for lane in (one.target_on, one.draft_on) if lane)),
        exits=(),
        max_context=_TEXTS.prompt_length + _TEXTS.num_tokens,
    )


def _schedules(one: MeasuredSpeed | MeasuredOverlap, demand: Demand) -> Iterator[Schedule]:
    yield Schedule(method="autoregressive", target_lane=one.target_on)
    if one.draft_on is not None:
        yield Schedule(
            method="speculative",
            target_lane=one.target_on,
            draft_lane=one.draft_on,
            num_speculative_tokens=one.window,
            drafter=demand.draft.shape.name,
        )


def _loss(one: MeasuredContention) -> Evidence:
    if one.wanted_bytes_per_s is not None:
        wanted = [np.array([want]) for want in one.wanted_bytes_per_s]
        stretch = float(stretches(wanted, POOL_EFFICIENCY.value * one.pool_bytes_per_s)[0][0])
        predicted = 1 / stretch - 1
    else:
        assert one.share_of_device is not None, "a contention of nothing"
        predicted = -one.share_of_device
    return _evidence(one, predicted, "share")


def _evidence(one: MeasuredSpeed | MeasuredOverlap | MeasuredContention, predicted: float, unit: Unit) -> Evidence:
    return Evidence(
        case=one.case,
        source=one.source,
        measured=one.measured,
        predicted=predicted,
        tolerance=one.tolerance,
        unit=unit,
        note=one.note,
    )
