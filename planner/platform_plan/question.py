"""What a plan is asked about: a platform, two models, and how often the target accepts drafted tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from decoding.errors import PlanError
from decoding.record import AcceptanceRecord
from hwprofiles.models.head_shapes import LOOKUP
from hwprofiles.platform import Platform
from planner.one_tokenizer import require_one_tokenizer
from planner.platform_plan.default_acceptance import (
    ALTERNATIVES_SOURCE,
    COVERAGE_SOURCE,
    HEAD_RATES,
    RATES_SOURCE,
    STREAM_RATES,
    TRAINED_EXITS_OF,
    default_rates,
    mean_rate,
    scaled,
    with_mean_rate,
)
from planner.what_if.mixed_record import Mixing, token_acceptance
from planner.wording import counted
from sim.acceptance.assumed import AssumedAcceptance
from sim.acceptance.rates import AssumedTree, TaskRates, Texts
from sim.derived.assumption import Assumption
from sim.derived.calibrated_lanes import CalibratedLanes
from sim.derived.derived_profile import Demand
from sim.derived.roofline import StoredModel

TEXTS_PER_TASK: Final = 4
"""Texts drawn for each task; four times as many if there is a single task."""
MOST_NEW_TOKENS: Final = 8192
"""Tokens of the longest answer that is simulated, so that a plan takes seconds."""
MOST_DRAWN_TOKENS: Final = 24 * 1024
"""Limit of tokens in all drawn texts together: the longer the answers, the fewer texts are drawn."""
MOST_DRAFTED: Final = 7
"""Tokens of the longest drafts that are planned."""
_MOST_KEPT: Final = 32
"""Size of the cache of drawn texts: several platforms and several steps of a plan use the same rates."""
_FIRST_ALTERNATIVE: Final = "acceptance.first_alternative"
GIVEN: Final = "given by the user"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        platform: the machine.
        target: the larger model.
        draft: the smaller model; or a head of the target, or prompt lookup, which run on the target's lane only.
        record: texts, recorded or drawn from assumed rates.
        assumed: the rates that texts are drawn from; None if they were recorded.
        acceptance: mean acceptance rate with its interval; a rate given by the user has none.
        assumptions: rates of the draft's alternatives and of exits.
        has_exits: whether trained exits exist: they were recorded, given or trained.
        calibrated: lanes of the platform that were timed.
        constants: replacements for `sim.derived.derived_profile.CONSTANTS` and for numbers of devices, by field.
    """

    platform: Platform
    target: StoredModel
    draft: StoredModel
    record: AcceptanceRecord
    assumed: AssumedAcceptance | None = None
    acceptance: Assumption
    assumptions: tuple[Assumption, ...] = ()
    has_exits: bool
    calibrated: CalibratedLanes | None = None
    constants: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return one line: the texts would fill pages."""
        return f"<Question: {self.target} with {self.draft} on {self.platform.name}>"

    def record_at(self, rate: float) -> AcceptanceRecord:
        """Return the texts with another mean acceptance."""
        return self.record_with(self.acceptance.field, rate)

    def record_with(self, name: str, value: float) -> AcceptanceRecord:
        """Return the texts with another value of the acceptance, or of one of the assumptions; `name` is its field.

        Raises `PlanError` for a value that is no rate, and for an assumption of 0, which cannot be scaled.
        """
        if not 0 <= value <= 1:
            raise PlanError(f"{name} is {value:g}, but rates are from 0 to 1")
        if self.assumed is None:
            return Mixing(self.record).at(value)
        rates, known = self.assumed.by_task, {one.field: one.value for one in self.assumptions}
        if name == self.acceptance.field:
            rates = with_mean_rate(rates, value)
        elif known[name]:
            changed = "alternative_rates" if name == _FIRST_ALTERNATIVE else "exit_coverage"
            rates = scaled(rates, changed, value / known[name])
        elif value:
            raise PlanError(f"{name} is 0, which cannot be scaled to {value:g}: give rates above 0")
        return _drawn(tuple(rates.items()), self.assumed.texts).record

    @property
    def record_with_streams(self) -> AcceptanceRecord | None:
        """The texts with a draft that has streams; None where they were recorded without streams."""
        if self.assumed is None or self.record.num_streams:
            return self.record if self.record.num_streams else None
        streams = {"stream_rates": STREAM_RATES}
        by_task = {task: rates.model_copy(update=streams) for task, rates in self.assumed.by_task.items()}
        return _drawn(tuple(by_task.items()), self.assumed.texts).record

    @property
    def basis(self) -> str:
        """Where the acceptance comes from, in words."""
        if self.record.assumed is not None:
            return "the given acceptance" if self.acceptance.source == GIVEN else "assumed acceptance"
        if self.acceptance.status == "measured":
            return "recorded acceptance"
        return f"acceptance recorded for another pair ({self.record.target} with {self.record.drafter})"

    @property
    def num_tokens(self) -> int:
        """Tokens of the longest context."""
        return self.record.contexts.stop + 1


def assumed_question(
    platform: Platform,
    target: StoredModel,
    draft: StoredModel,
    *,
    given: AssumedAcceptance | None = None,
    num_prompt_tokens: int = 512,
    num_new_tokens: int = 128,
    trained_exits: bool = False,
) -> Question:
    """Return a question with assumed acceptance: `given`, or the default of `planner.platform_plan.default_acceptance`.

    Where `given` lacks rates of the draft's alternatives or of exits, the defaults are used. Exits count as trained if
    they are given, if trained ones ship for the target, or with `trained_exits`.

    Raises:
        ConfigError: a text cannot have these lengths.
        PlanError: the draft cannot draft for the target, a model has too few positions, or the answer is too long.
    """
    _require_possible(target, draft, num_prompt_tokens, num_new_tokens)
    if num_new_tokens > MOST_NEW_TOKENS:
        msg = f"{num_new_tokens:,} new tokens are too many to simulate; {MOST_NEW_TOKENS:,} are the most"
        raise PlanError(f"{msg}. For the speed late in an answer, ask with a longer --context")
    texts = Texts(num_tokens=num_new_tokens, prompt_length=num_prompt_tokens)
    by_task, head_rate = default_rates(target.shape.num_layers), HEAD_RATES.get(draft.head or "")
    default = next(iter(by_task.values()))
    said = None if given is None else next(iter(given.by_task.values()))
    if given is not None:
        by_task = {
            task: rates.model_copy(
                update={
                    "alternative_rates": rates.alternative_rates or default.alternative_rates,
                    "exit_coverage": rates.exit_coverage or default.exit_coverage,
                }
            )
            for task, rates in given.by_task.items()
        }
    elif head_rate is not None:
        by_task = with_mean_rate(by_task, head_rate.value)
    if draft.head is not None:
        by_task = {task: _drafted_by(draft, rates) for task, rates in by_task.items()}
    most = TEXTS_PER_TASK if len(by_task) > 1 else 4 * TEXTS_PER_TASK
    num_texts = min(most, max(2, MOST_DRAWN_TOKENS // (len(by_task) * num_new_tokens)))
    assumed = _drawn(tuple(by_task.items()), texts.model_copy(update={"num_texts": num_texts}))
    layer, shares = next(iter(next(iter(by_task.values())).exit_coverage.items()), (0, ()))
    rate = _number("acceptance.rate", mean_rate(by_task), GIVEN if said else RATES_SOURCE)
    has_given_exits = said is not None and bool(said.exit_coverage)
    first = next(iter(by_task.values())).alternative_rates[0]
    source = GIVEN if said and said.alternative_rates else ALTERNATIVES_SOURCE
    numbers = [_number(_FIRST_ALTERNATIVE, first, source)]
    if shares:
        name = f"acceptance.exit_coverage_after_layer_{layer}"
        numbers.append(_number(name, shares[-1], GIVEN if has_given_exits else COVERAGE_SOURCE))
    return Question(
        platform=platform,
        target=target,
        draft=draft,
        assumed=assumed,
        record=assumed.record,
        acceptance=rate if head_rate is None or said is not None else head_rate,
        assumptions=tuple(numbers),
        has_exits=trained_exits or has_given_exits or target.shape.name.startswith(TRAINED_EXITS_OF),
    )


def recorded_question(
    platform: Platform,
    target: StoredModel,
    draft: StoredModel,
    record: AcceptanceRecord,
    *,
    replayed: bool = False,
    trained_exits: bool = False,
) -> Question:
    """Return a question with recorded acceptance.

    With `replayed`, the record is of another pair of models: its acceptance counts as a guess, and exits as untrained.

    Raises:
        PlanError: the draft cannot draft for the target, a model has too few positions, or the record has no lookups.
    """
    _require_possible(target, draft, 0, record.contexts.stop + 1)
    record = replace(record, exit_layers=tuple(one for one in record.exit_layers if one < target.shape.num_layers))
    if draft.head == LOOKUP and not record.chains_of("prompt_lookup"):
        raise PlanError("the record has no prompt lookup: record it (`mirrorsd record --heads prompt-lookup`)")
    if draft.head == LOOKUP:  # the rollouts in the record are a draft model's, which the question is not about
        prompts = tuple(replace(prompt, rollouts=prompt.rollouts[:0]) for prompt in record.prompts)
        record = replace(record, drafter=None, prompts=prompts)
    now = token_acceptance(record)
    source = f"record of {record.target} with {record.drafter or draft.shape.name}, {record.num_prompts} prompts"
    rate = Assumption.of("acceptance.rate", now, "guessed" if replayed else "measured", source)
    return Question(
        platform=platform,
        target=target,
        draft=draft,
        record=record,
        acceptance=replace(rate, high=min(1.0, rate.high)),
        has_exits=trained_exits or not replayed,
    )


def demand_of(question: Question, lanes: Sequence[str]) -> Demand:
    """Return what the profile of a question's platform has to cover."""
    return Demand(
        target=question.target,
        draft=question.draft,
        lanes=lanes,
        exits=question.record.exit_layers,
        calibrated=question.calibrated,
        constants=question.constants,
        context=question.record.contexts.start,
    )


@lru_cache(_MOST_KEPT)
def _drawn(by_task: tuple[tuple[str, TaskRates], ...], texts: Texts) -> AssumedAcceptance:
    return AssumedAcceptance(dict(by_task), texts)


def _drafted_by(draft: StoredModel, rates: TaskRates) -> TaskRates:
    name = draft.shape.name
    kinds: dict[str, dict[str, Any]] = {"dflash": {"blocks": (name,)}, LOOKUP: {"lookups": (name,)}}
    if draft.head == "medusa":
        depth = min(draft.shape.num_layers, len(rates.rates))
        kinds["medusa"] = {"trees": (AssumedTree(method="medusa", drafter=name, depth=depth),)}
    return rates.model_copy(update=kinds.get(str(draft.head), {}))


def _require_possible(target: StoredModel, draft: StoredModel, num_prompt_tokens: int, num_new_tokens: int) -> None:
    """Refuse models that cannot be a pair, and texts longer than their positions.

    A record's prompts count as new tokens, so that no prompt tokens means a record.
    """
    require_one_tokenizer(target.shape, draft.shape)
    num_tokens = num_prompt_tokens + num_new_tokens
    asked = "the record"
    if num_prompt_tokens:
        asked = f"a prompt of {counted(num_prompt_tokens, 'token')} and {num_new_tokens:,} new ones"
    for model in (target.shape, draft.shape):
        if num_tokens > model.max_position:
            room = model.max_position - num_new_tokens - MOST_DRAFTED + 1  # the last round drafts beyond the answer
            fitting = f"; a prompt of {room:,} would do" if num_prompt_tokens and room > 0 else ""
            msg = f"{asked} takes {num_tokens:,} positions, but {model.name} has only {model.max_position:,}{fitting}"
            raise PlanError(msg)


def _number(name: str, value: float, source: str) -> Assumption:
    """Return a rate as an assumption; one that the user gives has no interval."""
    return Assumption.of(name, value, "guessed", source, span=(value, value) if source == GIVEN else None)
