"""What is wrong with an acceptance record, and what a schedule asks for that one does not hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decoding.record import AcceptanceRecord, PromptRecord
    from decoding.schedule import Schedule


def missing_for(schedule: Schedule, record: AcceptanceRecord) -> Iterator[str]:
    """What a schedule asks for that a record does not hold, each with what it does hold."""
    if schedule.traits.is_tree:
        if not any(tree.answers(schedule) for tree in record.trees):
            known = "; ".join(f"{tree.method} of {tree.drafter}, {tree.depth} deep" for tree in record.trees) or "none"
            wanted = f"{schedule.method} of {schedule.drafter}, {schedule.num_speculative_tokens} deep"
            yield f"the record holds no trees of {wanted}; trees it holds: {known}"
    elif schedule.traits.has_draft_model:
        if record.drafter is None:
            yield f"{schedule.method} needs a draft model, and none was recorded"
        yield from _missing_of_draft(schedule, record)
    elif schedule.traits.window != "none" and not any(chain.answers(schedule) for chain in record.chains):
        known = "; ".join(f"{chain.method} of {chain.drafter}" for chain in record.chains) or "none"
        yield f"the record holds no windows of {schedule.method} of {schedule.drafter}; others it holds: {known}"
    if not schedule.is_tree and schedule.num_speculative_tokens > record.max_window:
        yield f"windows of more than {record.max_window} tokens were not recorded"


def _missing_of_draft(schedule: Schedule, record: AcceptanceRecord) -> Iterator[str]:
    if schedule.draft_streams > record.num_streams:
        yield f"more than {record.num_streams} draft_streams were not recorded"
    if schedule.num_alternatives > (width := record.num_candidates(None)):
        yield f"more than {max(0, width - 1)} roots per row from the draft were not recorded"
    if schedule.exit_features and not record.has_features:
        yield "the record has no rollouts with exit features: its drafter takes none"
    if schedule.exit_layer is not None:
        yield from _missing_at_exit(schedule, schedule.exit_layer, record)


def _missing_at_exit(schedule: Schedule, exit_layer: int, record: AcceptanceRecord) -> Iterator[str]:
    if exit_layer not in record.exit_layers:
        yield f"exit_layer {exit_layer} was not recorded; recorded are {', '.join(map(str, record.exit_layers))}"
    elif schedule.num_exit_candidates > (width := record.num_candidates(exit_layer)):
        yield f"more than {max(0, width - 1)} roots per row from the exit after layer {exit_layer} were not recorded"
    if schedule.exit_features and exit_layer < (last := max(record.feature_layers, default=0)):
        yield f"the exit after layer {exit_layer} cannot send features of layer {last}, which the draft reads"


def complaints(prompt: PromptRecord, record: AcceptanceRecord) -> Iterator[str]:
    """What is wrong with a prompt of a record."""
    length = len(prompt.text)
    if prompt.prompt_length < 1:
        yield f"prompt_length is {prompt.prompt_length}, not at least 1"
    if length > record.max_new_tokens:
        yield f"{length} tokens of text, more than max_new_tokens {record.max_new_tokens}"
    if missing := set(record.exit_layers) - set(prompt.exits):
        yield f"no exit after layer {', '.join(map(str, sorted(missing)))}"
    if len(prompt.tree_ranks) != len(record.trees):
        yield f"tree_ranks for {len(prompt.tree_ranks)} trees, not {len(record.trees)}"
    if len(prompt.chain_drafts) != len(record.chains):
        yield f"chain_drafts of {len(prompt.chain_drafts)} chains, not {len(record.chains)}"
    for tree, ranks in zip(record.trees, prompt.tree_ranks, strict=False):
        if ranks.shape != (length, tree.depth):
            yield f"tree_ranks of {tree.drafter} have shape {ranks.shape}, not {(length, tree.depth)}"
    yield from _missing_hits(prompt, record.num_streams)
    yield from _misshapen(prompt, record)


def _missing_hits(prompt: PromptRecord, num_streams: int) -> Iterator[str]:
    """Rollouts of a draft with streams whose right guesses are not known."""
    for rollouts_name, name in (("rollouts", "stream_hits"), ("feature_rollouts", "feature_stream_hits")):
        rollouts, found = getattr(prompt, rollouts_name), getattr(prompt, name)
        if num_streams and len(rollouts) and not len(found):
            yield f"no {name} for {num_streams} streams"
        if (found < 0).any():
            yield f"{name} hold {found.min()}, which is no number of guesses"


def _misshapen(prompt: PromptRecord, record: AcceptanceRecord) -> Iterator[str]:
    """Which arrays do not have a row for every token, or not as many drafted tokens as the record claims."""
    arrays = {name: ids for name in OPTIONAL_ARRAYS if len(ids := getattr(prompt, name))}
    if record.drafter is not None:
        arrays |= {"rollouts": prompt.rollouts, "alternatives": prompt.alternatives}
    arrays |= {f"exits[{layer}]": ids for layer, ids in prompt.exits.items()}
    arrays |= {f"{one.drafter}'s rollouts": ids for one, ids in zip(record.chains, prompt.chain_drafts, strict=False)}
    for name, ids in arrays.items():
        if ids.ndim != 2 or len(ids) != len(prompt.text):
            yield f"{name} has shape {ids.shape}, not one row for each of {len(prompt.text)} tokens of text"
        elif name.endswith(("rollouts", "stream_hits")) and ids.shape[1] < record.max_window:
            yield f"{name} has {ids.shape[1]} drafted tokens for max_window {record.max_window}"


OPTIONAL_ARRAYS = ("feature_rollouts", "stream_hits", "feature_stream_hits")
