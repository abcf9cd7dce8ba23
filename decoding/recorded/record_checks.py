"""What is wrong with an acceptance record or its file, and what a schedule asks for that one does not hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from decoding.errors import RecordError
from decoding.recorded.prompt_record import RecordedChain, RecordedTree, missing_trees
from decoding.schedule import Schedule
from decoding.validation import Many
from decoding.yaml_file import StrictModel

if TYPE_CHECKING:
    from decoding.record import AcceptanceRecord, PromptRecord

FORMAT: Final = "mirrorsd-acceptance-record-5"
GROWN_FORMAT: Final = "mirrorsd-acceptance-record-6"
"""Of a record with any of `GROWN_FIELDS`, which a reader of the other format would miss; both are read."""
GROWN_FIELDS: Final[Mapping[str, Any]] = {
    "assumed": None,
    "temperature": 0.0,
    "seed": 0,
    "backend": "torch",
    "host": None,
}
"""By what they are in a record that does not use them."""
MAX_BYTES: Final = 1 << 29
"""Of all arrays of a file together, decompressed."""
MAX_HEADER_BYTES: Final = 1 << 22
"""Some two hundred of them for every prompt."""


Layer = Annotated[int, Field(ge=1)]
Fact = Annotated[str, Field(max_length=300)]


class PromptHeader(StrictModel):
    """A `PromptRecord` in a file, its arrays left out."""

    name: str
    category: str
    prompt_length: Annotated[int, Field(ge=1, le=1 << 24)]
    prompt_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None


class RecordHeader(StrictModel):
    """An `AcceptanceRecord` in a file, the arrays of its prompts left out."""

    format: Literal["mirrorsd-acceptance-record-5", "mirrorsd-acceptance-record-6"]
    target: str
    drafter: str | None
    dtype: str
    max_window: Annotated[int, Field(ge=0, le=1024)]
    max_new_tokens: Annotated[int, Field(ge=1, le=1 << 24)]
    exit_layers: Many[Layer]
    feature_layers: Many[Layer]
    prompts: Many[PromptHeader]
    trees: Many[RecordedTree]
    chains: Many[RecordedChain]
    num_streams: Annotated[int, Field(ge=0, le=64)]
    assumed: str | None = None
    temperature: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 0.0
    seed: int = 0
    backend: Annotated[str, Field(min_length=1, max_length=100)] = "torch"
    host: Annotated[dict[Fact, Fact], Field(max_length=20)] | None = None


def checked_array(array: NDArray[Any], name: str) -> NDArray[Any]:
    """An array of a file as it was saved: ids in 32 bits, margins and probabilities as floats.

    Raises:
        RecordError: it holds something else.
    """
    is_number = name.endswith(("margins", "acceptance"))
    if array.ndim != (1 if name.endswith(("text", "margins")) else 2):
        raise RecordError(f"{name} has {array.ndim} dimensions")
    if array.dtype.kind not in ("f" if is_number else "iu"):
        raise RecordError(
            f"{name} holds values of type {str(array.dtype)[:60]}, not {'numbers' if is_number else 'ids'}"
        )
    if is_number:
        if not np.isfinite(array).all():
            raise RecordError(f"{name} holds numbers that are not finite")
        return array.astype(np.float32, copy=False)
    limits = np.iinfo(np.int32)
    if array.size and not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
        raise RecordError(f"{name} holds ids of more than 32 bits")
    return array.astype(np.int32, copy=False)


def missing_for(schedule: Schedule, record: AcceptanceRecord) -> Iterator[str]:
    """What a schedule asks for that a record does not hold, each with what it does hold."""
    if record.temperature and (rule := schedule.verification) in ("greedy", "typical"):
        yield f"the texts were sampled at temperature {record.temperature:g}: verification {rule} writes others"
    if schedule.traits.is_tree:
        if (missing := missing_trees(schedule, record.trees)) is not None:
            wanted, known = missing
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
    if schedule.draft_streams and record.samples_drafts(schedule):
        yield "what draft_streams guess of a draft that samples its tokens (verification ratio) was not recorded"
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
    if not length:
        yield "there is no text"
    if len(prompt.margins) not in (0, length):
        yield f"{len(prompt.margins)} margins for {length} tokens of text"
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
    optional = (*OPTIONAL_ARRAYS, *SAMPLED_ARRAYS)
    arrays: dict[str, NDArray[Any]] = {name: found for name in optional if len(found := getattr(prompt, name))}
    if record.drafter is not None:
        arrays |= {"rollouts": prompt.rollouts, "alternatives": prompt.alternatives}
        if record.temperature:
            arrays |= {name: getattr(prompt, name) for name in SAMPLED_ARRAYS[:2]}
    arrays |= {f"exits[{layer}]": ids for layer, ids in prompt.exits.items()}
    arrays |= {f"{one.drafter}'s rollouts": ids for one, ids in zip(record.chains, prompt.chain_drafts, strict=False)}
    for name, ids in arrays.items():
        if name.endswith("acceptance") and ((ids < 0) | (ids > 1)).any():
            yield f"{name} holds what is no probability"
        if ids.ndim != 2 or len(ids) != len(prompt.text):
            yield f"{name} has shape {ids.shape}, not one row for each of {len(prompt.text)} tokens of text"
        elif name.endswith(("rollouts", "stream_hits", "drafts", "acceptance")) and ids.shape[1] != record.max_window:
            yield f"{name} has {ids.shape[1]} drafted tokens for max_window {record.max_window}"


OPTIONAL_ARRAYS = ("feature_rollouts", "stream_hits", "feature_stream_hits")
SAMPLED_ARRAYS = ("draft_acceptance", "refused_drafts", "feature_draft_acceptance", "feature_refused_drafts")
"""Of texts that were sampled."""
