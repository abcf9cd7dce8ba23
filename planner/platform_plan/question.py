"""What a plan is asked: a platform, two models, and how often the target would accept what is drafted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from decoding.errors import PlanError
from decoding.record import AcceptanceRecord
from hwprofiles.platform import Platform
from planner.one_tokenizer import require_one_tokenizer
from planner.platform_plan.default_acceptance import (
    ALTERNATIVES,
    ALTERNATIVES_SOURCE,
    COVERAGE_SOURCE,
    RATES_SOURCE,
    STREAM_RATES,
    TRAINED_EXITS_OF,
    default_rates,
    mean_rate,
    with_mean_rate,
)
from planner.retrodict.drafters import RATES, Kind
from planner.what_if.mixed_record import token_acceptance, with_acceptance
from sim.acceptance.assumed import AssumedAcceptance
from sim.acceptance.rates import TaskRates, Texts
from sim.derived.assumption import Assumption
from sim.derived.calibrated_lanes import CalibratedLanes
from sim.derived.roofline import StoredModel

TEXTS_PER_TASK: Final = 4
MOST_NEW_TOKENS: Final = 8192
"""Of an answer, for an answer of the planner in seconds."""
MOST_DRAWN_TOKENS: Final = 24 * 1024
"""Of all texts together; of longer answers fewer are drawn."""
_FIRST_ALTERNATIVE: Final = "acceptance.first_alternative"
GIVEN: Final = "given by the user"
_KIND_OF_HEAD: Final[Mapping[str, Kind]] = {"mtp": "mtp", "eagle3": "eagle"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        platform: the machine.
        target: the larger model.
        draft: the smaller one, or a head of the target, which runs on its lane alone.
        record: texts, recorded or drawn from assumed rates.
        record_with_streams: the same texts by a draft that has streams, for what is told of those alone; None where
            nothing is known of them.
        record_at: the texts if drafted tokens were accepted with such a mean rate.
        acceptance: that rate today, and between which it may lie; what a user gives is taken as it is.
        assumptions: what is known of acceptance otherwise.
        has_exits: whether the target has the exits that the record knows: recorded or given, or trained.
        calibrated: lanes of the platform that were timed.
        assumed: what the texts are drawn from; None where they were recorded.
        constants: other values of `sim.derived.derived_profile.CONSTANTS`, by field.
        records_with: the texts with another value of one of the other assumptions, by its field.
    """

    platform: Platform
    target: StoredModel
    draft: StoredModel
    record: AcceptanceRecord
    record_with_streams: AcceptanceRecord | None
    record_at: Callable[[float], AcceptanceRecord]
    acceptance: Assumption
    assumptions: tuple[Assumption, ...] = ()
    has_exits: bool
    calibrated: CalibratedLanes | None = None
    assumed: AssumedAcceptance | None = None
    constants: Mapping[str, float] = field(default_factory=dict)
    records_with: Mapping[str, Callable[[float], AcceptanceRecord]] = field(default_factory=dict)

    def record_with(self, name: str, value: float) -> AcceptanceRecord:
        """The texts with another value of the acceptance, or of an assumption beside it."""
        return self.record_at(value) if name == self.acceptance.field else self.records_with[name](value)

    @property
    def basis(self) -> str:
        """Whose acceptance it is, as a sentence goes on."""
        if self.record.assumed is not None:
            return "the acceptance that was given" if self.acceptance.source == GIVEN else "assumed acceptance"
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

    Where what is given says nothing of the draft's alternatives or of exits, the default ones go with it. Exits are
    those of the target where they are given, or `trained_exits` says so.

    Raises:
        PlanError: the models cannot be a pair, or have too few positions; or the answer is longer than can be played.
    """
    _require_possible(target, draft, num_prompt_tokens, num_new_tokens)
    if num_new_tokens > MOST_NEW_TOKENS:
        msg = f"{num_new_tokens:,} new tokens are too many to play; {MOST_NEW_TOKENS:,} are the most"
        raise PlanError(f"{msg}: later ones take as long as with a longer --context")
    has_exits = trained_exits or target.shape.name.startswith(TRAINED_EXITS_OF)
    num_layers = target.shape.num_layers
    by_task, sources = default_rates(num_layers), [RATES_SOURCE, ALTERNATIVES_SOURCE, COVERAGE_SOURCE]
    if given is not None:
        default = next(iter(by_task.values()))
        by_task = {
            task: rates.model_copy(
                update={
                    "alternative_rates": rates.alternative_rates or default.alternative_rates,
                    "exit_coverage": rates.exit_coverage or default.exit_coverage,
                }
            )
            for task, rates in given.by_task.items()
        }
        first = next(iter(given.by_task.values()))
        has_exits = has_exits or bool(first.exit_coverage)
        sources[0] = GIVEN
        sources[1:] = [
            GIVEN if said else source
            for said, source in zip((first.alternative_rates, first.exit_coverage), sources[1:], strict=True)
        ]
    most = TEXTS_PER_TASK if len(by_task) > 1 else 4 * TEXTS_PER_TASK
    num_texts = min(most, max(2, MOST_DRAWN_TOKENS // (len(by_task) * num_new_tokens)))
    texts = Texts(num_texts=num_texts, num_tokens=num_new_tokens, prompt_length=num_prompt_tokens)
    usual = None if draft.head is None or given is not None else RATES[_KIND_OF_HEAD[draft.head]]
    if usual is not None:
        by_task = with_mean_rate(by_task, usual.value)
    rate, *others = _assumed(mean_rate(by_task), sources, next(iter(by_task.values())).exit_coverage)
    rate = usual or rate
    assumed = AssumedAcceptance(by_task, texts)
    return Question(
        platform=platform,
        target=target,
        draft=draft,
        assumed=assumed,
        record=assumed.record,
        record_with_streams=AssumedAcceptance(_with_streams(by_task), texts).record,
        record_at=lambda rate: AssumedAcceptance(with_mean_rate(by_task, rate), texts).record,
        acceptance=rate,
        assumptions=tuple(others),
        records_with={one.field: partial(_record_with, by_task, texts, one) for one in others},
        has_exits=has_exits,
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
    """A question with recorded acceptance; `replayed` from another pair it counts as a guess, and so do its exits.

    Raises:
        PlanError: the models cannot be a pair, or have too few positions.
    """
    _require_possible(target, draft, 0, record.contexts.stop + 1)
    record = replace(record, exit_layers=tuple(one for one in record.exit_layers if one < target.shape.num_layers))
    now = token_acceptance(record)
    source = f"record of {record.target} with {record.drafter}, {len(record.prompts)} prompts"
    rate = Assumption.of("acceptance.rate", now, "guessed" if replayed else "measured", source)
    return Question(
        platform=platform,
        target=target,
        draft=draft,
        record=record,
        record_with_streams=record if record.num_streams else None,
        record_at=lambda rate: with_acceptance(record, rate),
        acceptance=replace(rate, high=min(1.0, rate.high)),
        has_exits=trained_exits or not replayed,
    )


def _record_with(by_task: Mapping[str, TaskRates], texts: Texts, number: Assumption, value: float) -> AcceptanceRecord:
    """Texts in which what a number stands for, alternatives or exits, is right as much more often as the number."""
    by, is_alternatives = value / number.value, number.field == _FIRST_ALTERNATIVE

    def scaled(shares: Sequence[float], *, by: float = by) -> tuple[float, ...]:
        return tuple(min(1.0, by * share) for share in shares)

    changed = {
        task: rates.model_copy(
            update={"alternative_rates": scaled(rates.alternative_rates)}
            if is_alternatives
            else {"exit_coverage": {layer: scaled(shares) for layer, shares in rates.exit_coverage.items()}}
        )
        for task, rates in by_task.items()
    }
    return AssumedAcceptance(changed, texts).record


def _require_possible(target: StoredModel, draft: StoredModel, num_prompt_tokens: int, num_new_tokens: int) -> None:
    """Refuse models that are no pair, and texts that are longer than their positions."""
    require_one_tokenizer(target.shape, draft.shape)
    num_tokens = num_prompt_tokens + num_new_tokens
    for model in (target.shape, draft.shape):
        if num_tokens > model.max_position:
            asked = (
                f"a prompt of {num_prompt_tokens:,} tokens and {num_new_tokens:,} new ones"
                if num_prompt_tokens
                else "the record"
            )
            raise PlanError(f"{asked}: {num_tokens:,} positions, and {model.name} has {model.max_position:,}")


def _with_streams(by_task: Mapping[str, TaskRates]) -> dict[str, TaskRates]:
    """Return the same rates, and those of streams where none are given."""
    return {
        task: rates if rates.stream_rates else rates.model_copy(update={"stream_rates": STREAM_RATES})
        for task, rates in by_task.items()
    }


def _assumed(mean: float, sources: list[str], coverage: dict[int, tuple[float, ...]]) -> tuple[Assumption, ...]:
    """Return the first of every kind of rate, with its source; all of them stand in the record's own words."""
    named = {"acceptance.rate": mean, _FIRST_ALTERNATIVE: ALTERNATIVES[0]}
    named |= {
        f"acceptance.exit_coverage_after_layer_{layer}": shares[-1] for layer, shares in list(coverage.items())[:1]
    }
    return tuple(
        Assumption.of(field, value, "guessed", source, span=(value, value) if source == GIVEN else None)
        for (field, value), source in zip(named.items(), sources, strict=False)
    )
