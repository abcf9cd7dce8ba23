"""Predicts the speeds of a public measurement from shipped data sheets, row curves and default acceptance."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, hypot
from typing import Final

from costs.cost_model import GroupCost, LaneCost
from costs.prices import calls_s, pass_s
from costs.round_plan import DRAFT_READS, LAYER
from decoding.errors import ProfileError
from hwprofiles.curves.names import engine_of
from hwprofiles.engines import LAW_ENGINE, priced, weights_for
from hwprofiles.model_shape import ModelShape, model_shape
from planner.published.usual_rates import Kind
from planner.retrodict.case_machine import CaseMachine, case_machine
from planner.retrodict.cases import Case, PublishedSpeed
from planner.retrodict.drafters import Draft, accepted, draft_of, drafts_in_parallel
from planner.retrodict.windows import SizedRound, num_in_a_row, window_of
from planner.row_curve import few_rows_error
from sim.derived.derived_profile import exchanges
from sim.derived.device_speed import device_speed
from sim.derived.roofline import TYPICAL_CONTEXT, RooflineCost, StoredModel

RATIO_ERRORS: Final[Mapping[Kind, float]] = {
    **dict.fromkeys(("mtp", "eagle", "heads"), 0.35),
    **dict.fromkeys(("draft", "block", "lookup", "self"), 0.75),
}
"""Remaining error (half-width, 90 %) of a predicted ratio even if all its numbers are right, by the drafter's kind.
Published speeds are of other texts, builds and settings than the published row curves, and engines differ in how they
run a drafter. Nine of ten of 131 gains of heads lie inside, and of 52 of other drafters: all known on 2026-11-26."""
DRAFTING_ERROR: Final = 0.3
"""Relative error of the time of drafting: the drafter's shape is assumed to be the usual one of its kind."""
_GIB: Final = 1.074
"""A GB of a maker's memory is 2**30 bytes."""
LAW_ERROR: Final = 0.18
"""Relative error of a server's time from a kernel law, which was fitted to one version of the server. Chosen so that
nine of ten of the seven known speeds with stated weights lie inside."""
THROTTLED_ERROR: Final = 0.3
"""Relative error for a device whose label says that it is a slower variant of the one in the sheet."""
UNTOLD_WEIGHTS_ERROR: Final = 0.3
"""Relative error of a server's speed where nobody states the weight format: weights may have had half the size."""


@dataclass(frozen=True, slots=True)
class PredictedSpeed:
    """Tokens per second, or a multiple of plain decoding, with the ends of its interval (90 %)."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, error: float) -> "PredictedSpeed":
        """Return a value with an interval of exp(-error) to exp(error) times the value."""
        return cls(value, value * exp(-error), value * exp(error))


@dataclass(frozen=True)
class PredictedCase:
    """Predicts the speeds of a case."""

    case: Case
    machine: CaseMachine
    target: StoredModel
    cost: RooflineCost

    @classmethod
    def of(cls, case: Case) -> "PredictedCase":
        """Return the predictor of a case.

        Raises:
            ModelError, ConfigError, ProfileError: a model, weight format or device is not known.
        """
        machine = case_machine(case.device, case.engine, drafts_apart=drafts_in_parallel(case.drafter))
        sheet, shape = machine.sheet, model_shape(case.target.shape)
        target = StoredModel(shape=shape, weights=_weights(case, shape))
        if sheet.memory_bytes_per_s is None:
            raise ProfileError(f"the sheet of {sheet.name} gives no memory_bytes_per_s")
        by_curves = priced(sheet, shape, target.weights)
        together = machine.num_together
        speed = device_speed("gpu", sheet, sheet.memory_bytes_per_s, by_curves, target.weights, num_together=together)
        return cls(case, machine, target, RooflineCost(device=speed, target=_stretched(target), num_devices=together))

    @cached_property
    def draft(self) -> Draft:
        """The drafter of the case; raises what `draft_of` raises."""
        return draft_of(self.case.drafter, self.target, self.case.engine)

    @property
    def are_weights_known(self) -> bool:
        """Whether the weight format is stated, or the engine is a server, which runs weights as published."""
        return self.are_weights_told or engine_of(self.case.engine) == LAW_ENGINE

    @property
    def are_weights_told(self) -> bool:
        """Whether the case, or the target's name, states the weight format."""
        told = self.case.target
        return weights_for(self.case.engine, told.weights, told.shape) is not None

    @property
    def memory_needed(self) -> float:
        """The target's bytes over the memory of its devices; 0 where the memory is not known."""
        sheet, count = self.machine.sheet, max(1, self.machine.num_devices)
        needed = self.target.shape.weight_bytes(self.target.weights)
        return needed / (count * sheet.memory_bytes.value * _GIB) if sheet.memory_bytes else 0.0

    def plain_s(self, context: int) -> float:
        """Return the seconds per token without speculation."""
        return self._pass_s(1, context)

    def plain(self, context: int) -> PredictedSpeed:
        """Return the predicted tokens per second without speculation."""
        return PredictedSpeed.of(1 / self.plain_s(context), self._absolute_error(context))

    def ratio(self, one: PublishedSpeed) -> PredictedSpeed:
        """Return the predicted speed-up, given the published plain speed and, if known, the acceptance."""
        assert one.plain is not None, "asked with a plain speed"
        tokens, round_s, error = self._round(one, one.share, 1 / one.plain)
        return PredictedSpeed.of(tokens / round_s / one.plain, hypot(error, self._ratio_error))

    def absolute(self, one: PublishedSpeed) -> PredictedSpeed:
        """Return the predicted tokens per second, given only device, engine and models."""
        tokens, round_s, error = self._round(one, None, self.plain_s(one.context))
        return PredictedSpeed.of(tokens / round_s, hypot(error, self._ratio_error, self._absolute_error(one.context)))

    def naive_ratio(self, one: PublishedSpeed, share: float | None) -> float:
        """Return Leviathan's speed-up: tokens of a round over its cost, 1 for the verification plus the draft steps.

        A step costs its share of the target's bytes. Drafting is taken to be in turn, whatever the drafter does.
        """
        step = self.draft.step_bytes / self.target.shape.pass_bytes(self.target.weights)
        tokens = accepted(self.draft, one.drafted, share).tokens
        return tokens / (1 + step * self.draft.num_steps(num_in_a_row(self.draft, one)))

    @property
    def naive_plain(self) -> float:
        """Tokens per second if a pass did nothing but read the weights at the data sheet's bandwidth."""
        bandwidth = self.machine.sheet.memory_bytes_per_s
        assert bandwidth is not None, "a case has one"
        return self.machine.num_together * bandwidth.value / self.target.shape.pass_bytes(self.target.weights)

    @property
    def _ratio_error(self) -> float:
        return RATIO_ERRORS[self.draft.kind]

    def _round(self, one: PublishedSpeed, share: float | None, plain_s: float) -> tuple[float, float, float]:
        """Return the tokens of a round, its seconds if a plain token takes `plain_s`, and their relative error."""
        window = window_of(self.draft, one, self.case.engine, share)
        pace = plain_s / self.plain_s(one.context)
        times = [(of.portion, *self._round_s(of, one.context, pace)) for of in window.rounds]
        seconds = sum(portion * time_s for portion, time_s, _ in times)
        error_s = sum(portion * error for portion, _, error in times)
        return window.committed.tokens, seconds, hypot(error_s / seconds, window.committed.error)

    def _round_s(self, of: SizedRound, context: int, pace: float) -> tuple[float, float]:
        """Return the seconds of rounds of one size, and their error in seconds; `pace` scales device times."""
        verifying_s = pace * self._pass_s(of.num_rows, context)
        steps_s = (calls_s(self._drafting, self.draft.step, rows, context) for rows in of.step_rows)
        drafting_s = pace * sum(step_s + self.cost.device.graph_s for step_s in steps_s)
        host_s = len(of.step_rows) * self.cost.device.engine_step_s
        does_read = self.draft.model.reads_verified_rows and not self.draft.is_parallel
        if does_read and self.cost.device.reads_again:
            drafting_s += pace * calls_s(self._drafting, {DRAFT_READS: 1}, of.num_rows, context)
        error_s = hypot(
            verifying_s * few_rows_error(self.cost, of.num_rows, context),
            drafting_s * DRAFTING_ERROR,
            host_s * self.cost.device.error_of("engine_step_s"),
        )
        in_turn_s = drafting_s + host_s
        return max(verifying_s, in_turn_s) if self.draft.is_parallel else verifying_s + in_turn_s, error_s

    def _pass_s(self, rows: int, context: int) -> float:
        return pass_s(self._grouped(self.cost), self.target.shape.num_layers, rows, context) + self.cost.device.graph_s

    @cached_property
    def _drafting(self) -> LaneCost:
        """The cost of drafting without the engine's work on the host, which does not scale with the device's pace.

        A parallel draft with a device of its own runs on that device alone.
        """
        device = replace(self.cost.device, engine_step_s=0.0)
        draft = self.draft.model
        cost = replace(self.cost, device=device, draft=_stretched(draft))
        is_apart = self.draft.is_parallel and self.machine.num_together < self.machine.num_devices
        return replace(cost, num_devices=1) if is_apart else self._grouped(cost, draft)

    def _grouped(self, cost: RooflineCost, draft: StoredModel | None = None) -> LaneCost:
        """Return the cost on all devices that share layers, with their exchanges."""
        together, (latency_s, _) = self.machine.num_together, self.machine.step_s
        if together == 1:
            return cost
        step = latency_s, self.machine.step_bytes_per_s
        return GroupCost(cost, exchanges(self.target, draft or self.target, together, step, "links of the case"))

    def _absolute_error(self, context: int) -> float:
        """Return the relative error of a plain token's time on this device."""
        alone_s = pass_s(self.cost, self.target.shape.num_layers, 1, TYPICAL_CONTEXT) + self.cost.device.graph_s
        reduces = (1 - alone_s / self._pass_s(1, TYPICAL_CONTEXT)) * self.machine.step_s[1]
        throttled = THROTTLED_ERROR if self.machine.is_throttled else 0.0
        untold = 0.0 if self.are_weights_told else UNTOLD_WEIGHTS_ERROR
        law = 0.0 if self.cost.device.unhidden_share is None else LAW_ERROR
        layers = replace(self.cost, context=context).facts(LAYER).relative_error
        return hypot(self.cost.device.reading_error, layers, reduces, throttled, untold, law)


def _stretched(model: StoredModel) -> StoredModel:
    """Return a model without its limit of positions, unless these are a learned table.

    Rotary positions have no limit: configurations state the trained length, and published runs exceed it (YaRN).
    """
    shape = model.shape
    longest = shape.max_position if shape.learned_positions else sys.maxsize
    return replace(model, shape=shape.model_copy(update={"max_position": longest}))


def _weights(case: Case, target: ModelShape) -> str:
    """Return the target's weight format: as stated by the case or the target's name, or else the published one."""
    published = weights_for(case.engine, target.published_in) or target.published_in
    return weights_for(case.engine, case.target.weights, case.target.shape, target.published_in) or published
