"""What a schedule asks for that assumed acceptance does not say: every answer is a stated assumption, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from decoding.recorded.prompt_record import missing_trees
from decoding.schedule import Schedule

if TYPE_CHECKING:
    from decoding.record import AcceptanceRecord


def missing_assumptions(schedule: Schedule, record: AcceptanceRecord) -> Iterator[str]:
    """What a schedule needs that was not assumed for the texts of `record`, each with what was."""
    traits, window = schedule.traits, schedule.num_speculative_tokens
    if traits.is_tree:
        if (missing := missing_trees(schedule, record.trees)) is not None:
            wanted, known = missing
            yield f"acceptance is assumed, and {wanted} is none of the assumed trees; trees: {known}"
        return
    if traits.finds_text or traits.drafts_block:
        if not any(chain.answers(schedule) for chain in record.chains):
            kind = "lookups" if traits.finds_text else "blocks"
            known = ", ".join(chain.drafter for chain in record.chains_of(schedule.method)) or "none"
            yield f"acceptance is assumed, and {schedule.drafter} is none of the assumed {kind}; {kind}: {known}"
    elif traits.has_draft_model:
        yield from _missing_of_draft(schedule, record)
    if window > record.max_window:
        yield f"num_speculative_tokens is {window}, but acceptance is assumed for {record.max_window} drafted places"


def _missing_of_draft(schedule: Schedule, record: AcceptanceRecord) -> Iterator[str]:
    if schedule.draft_streams > (given := record.num_streams):
        yield f"draft_streams {schedule.draft_streams} asks for as many stream_rates; given are {given}"
    if schedule.num_alternatives > (width := record.num_candidates(None)):
        wanted = schedule.num_alternatives - 1
        yield f"{wanted} roots per row from the draft ask for as many alternative_rates; given are {max(0, width - 1)}"
    if schedule.exit_features and not record.has_features:
        yield "exit_features ask for feature_rates, and none are given"
    layer = schedule.exit_layer
    if layer is None:
        return
    if layer not in record.exit_layers:
        known = ", ".join(map(str, record.exit_layers)) or "no layer"
        yield f"exit_layer {layer} asks for its exit_coverage; given for {known}"
    elif schedule.num_exit_candidates > (width := record.num_candidates(layer)):
        wanted = schedule.num_exit_candidates - 1
        yield f"{wanted} roots per row ask for exit_coverage of layer {layer} up to {wanted}; given up to {width - 1}"
