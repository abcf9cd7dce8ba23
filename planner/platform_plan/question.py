"""What a plan is asked: a platform, two models, and how often the target would accept what is drafted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from decoding.record import AcceptanceRecord
from hwprofiles.platform import Platform
from planner.platform_plan.default_acceptance import (
    ALTERNATIVES,
    ALTERNATIVES_SOURCE,
    COVERAGE_SOURCE,
    RATES_SOURCE,
    default_rates,
    mean_rate,
    with_mean_rate,
)
from planner.platform_plan.four_arms import STREAM_RATES
from planner.what_if.mixed_record import token_acceptance, with_acceptance
from sim.acceptance.assumed import AssumedAcceptance
from sim.acceptance.rates import TaskRates, Texts
from sim.derived.assumption import Assumption
from sim.derived.roofline import StoredModel

TEXTS_PER_TASK: Final = 4
GIVEN: Final = "given by the user"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        platform: the machine.
        target: the larger model.
        draft: the smaller one.
        record: texts, recorded or drawn from assumed rates.
        record_with_streams: the same texts by a draft that has streams, for what is told of those alone; None where
            nothing is known of them.
        record_at: the texts if drafted tokens were accepted with such a mean rate.
        acceptance: that rate today, and between which it may lie; what a user gives is taken as it is.
        assumptions: what is known of acceptance otherwise.
    """

    platform: Platform
    target: StoredModel
    draft: StoredModel
    record: AcceptanceRecord
    record_with_streams: AcceptanceRecord | None
    record_at: Callable[[float], AcceptanceRecord]
    acceptance: Assumption
    assumptions: tuple[Assumption, ...] = ()

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
) -> Question:
    """A question with assumed acceptance: `given`, or the default of `planner.platform_plan.default_acceptance`.

    Where what is given says nothing of the draft's alternatives or of exits, the default ones go with it.
    """
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
        sources[0] = GIVEN
        sources[1:] = [
            GIVEN if said else source
            for said, source in zip((first.alternative_rates, first.exit_coverage), sources[1:], strict=True)
        ]
    texts = Texts(num_texts=TEXTS_PER_TASK, num_tokens=num_new_tokens, prompt_length=num_prompt_tokens)
    if len(by_task) == 1:
        texts = texts.model_copy(update={"num_texts": 4 * TEXTS_PER_TASK})
    rate, *others = _assumed(mean_rate(by_task), sources, next(iter(by_task.values())).exit_coverage)
    return Question(
        platform=platform,
        target=target,
        draft=draft,
        record=AssumedAcceptance(by_task, texts).record,
        record_with_streams=AssumedAcceptance(_with_streams(by_task), texts).record,
        record_at=lambda rate: AssumedAcceptance(with_mean_rate(by_task, rate), texts).record,
        acceptance=rate,
        assumptions=tuple(others),
    )


def recorded_question(
    platform: Platform, target: StoredModel, draft: StoredModel, record: AcceptanceRecord
) -> Question:
    """A question with recorded acceptance, perhaps that of another pair: then its source says so."""
    now = token_acceptance(record)
    source = f"record of {record.target} with {record.drafter}, {len(record.prompts)} prompts"
    return Question(
        platform=platform,
        target=target,
        draft=draft,
        record=record,
        record_with_streams=record if record.num_streams else None,
        record_at=lambda rate: with_acceptance(record, rate),
        acceptance=Assumption.of("acceptance.rate", now, "measured", source),
    )


def _with_streams(by_task: Mapping[str, TaskRates]) -> dict[str, TaskRates]:
    """The same rates, and those of streams where none are given."""
    return {
        task: rates if rates.stream_rates else rates.model_copy(update={"stream_rates": STREAM_RATES})
        for task, rates in by_task.items()
    }


def _assumed(mean: float, sources: list[str], coverage: dict[int, tuple[float, ...]]) -> tuple[Assumption, ...]:
    """The first of every kind of rate, with its source; all of them stand in the record's own words."""
    half = next(iter(coverage.items()))
    named = {
        "acceptance.rate": mean,
        "acceptance.first_alternative": ALTERNATIVES[0],
        f"acceptance.exit_coverage_after_layer_{half[0]}": half[1][-1],
    }
    return tuple(
        Assumption.of(field, value, "guessed", source, span=(value, value) if source == GIVEN else None)
        for (field, value), source in zip(named.items(), sources, strict=True)
    )
