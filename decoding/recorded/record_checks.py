"""Checks of an acceptance record and of its file, and what a record lacks for a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from decoding.errors import RecordError
from decoding.recorded.prompt_record import RecordedChain, RecordedTree
from decoding.schedule import Schedule
from decoding.validation import Many
from decoding.yaml_file import StrictModel

if TYPE_CHECKING:
    from decoding.record import AcceptanceRecord, PromptRecord

FORMAT: Final = "mirrorsd-acceptance-record-5"
MAX_BYTES: Final = 1 << 29
"""Most bytes of all arrays of a file, unpacked."""
MAX_HEADER_BYTES: Final = 1 << 22
"""Most bytes of a header, which has about two hundred per prompt."""

_Layer = Annotated[int, Field(ge=1)]
Fact = Annotated[str, Field(max_length=300)]


class PromptHeader(StrictModel):
    """The fields of a `PromptRecord` in a file's header, without its arrays."""

    name: str
    category: str
    prompt_length: Annotated[int, Field(ge=1, le=1 << 24)]
    prompt_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None


class RecordHeader(StrictModel):
    """The header of a file: the fields of an `AcceptanceRecord`, without the arrays of its prompts."""

    format: Literal["mirrorsd-acceptance-record-5", "mirrorsd-acceptance-record-6"]
    """Nothing writes format 6 now; committed records have it if they have a field that has a default here."""
    target: str
    drafter: str | None
    dtype: str
    max_window: Annotated[int, Field(ge=0, le=1024)]
    max_new_tokens: Annotated[int, Field(ge=1, le=1 << 24)]
    exit_layers: Many[_Layer]
    feature_layers: Many[_Layer]
    prompts: Many[PromptHeader]
    trees: Many[RecordedTree]
    chains: Many[RecordedChain]
    num_streams: Annotated[int, Field(ge=0, le=64)]
    assumed: str | None = None
    temperature: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 0.0
    seed: int = 0
    backend: Annotated[str, Field(min_length=1, max_length=100)] = "torch"
    host: Annotated[dict[Fact, Fact], Field(max_length=20)] | None = None
    exits: str | None = None


def checked_array(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return an array of a file with ids as int32, or margins or probabilities as float32.

    Raises `RecordError` for other contents.
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
    """Yield messages about what a schedule needs but a record lacks, and what the record holds instead.

    For assumed acceptance (`AcceptanceRecord.assumed`) a message names the missing rates.
    """
    traits, window = schedule.traits, schedule.num_speculative_tokens
    if record.temperature and (rule := schedule.verification) in ("greedy", "typical"):
        yield f"the texts were sampled at temperature {record.temperature:g}: verification {rule} writes others"
    others = record.trees if traits.is_tree else record.chains
    if traits.has_draft_model:
        if record.drafter is None:
            yield f"{schedule.method} needs a draft model, and none was recorded"
        if record.samples_drafts(schedule):
            yield from _missing_of_samples(schedule, record)
        yield from _missing_of_draft(schedule, record)
    elif traits.window != "none" and not any(one.answers(schedule) for one in others):
        kind, deep = ("trees", f", {window} deep") if traits.is_tree else ("windows", "")
        known = "; ".join(map(str, others)) or "none"
        rates = "trees" if traits.is_tree else "lookups" if traits.finds_text else "blocks"
        refusal = _lacking(record, f"{kind} of {schedule.method} of {schedule.drafter}{deep}", rates)
        if schedule.drafter is None:
            refusal = f"{kind} of {schedule.method}{deep} need the name of a drafter"
        yield f"{refusal}; {kind} it holds: {known}"
    if not traits.is_tree and window > record.max_window:
        yield _lacking(record, f"windows of more than {record.max_window} tokens", "rates")


def _lacking(record: AcceptanceRecord, what: str, rates: str) -> str:
    """Return the message that something was not recorded, or for assumed acceptance which field is missing."""
    return (
        f"{what} were not recorded" if record.assumed is None else f"{what} are not assumed (`{rates}` of a YAML file)"
    )


def _missing_of_samples(schedule: Schedule, record: AcceptanceRecord) -> Iterator[str]:
    if schedule.draft_streams:
        yield "what draft_streams guess of a draft that samples its tokens (verification ratio) was not recorded"
    if schedule.exit_features and record.has_features and not record.prompts[0].feature_draft_acceptance.size:
        yield "what is accepted of samples with exit_features (verification ratio) was not recorded"


def _missing_of_draft(schedule: Schedule, record: AcceptanceRecord) -> Iterator[str]:
    if schedule.draft_streams > record.num_streams:
        yield _lacking(record, f"more than {record.num_streams} draft_streams", "stream_rates")
    if schedule.num_alternatives > (width := record.num_candidates(None)):
        yield _lacking(record, f"more than {max(0, width - 1)} roots per row from the draft", "alternative_rates")
    if schedule.exit_features and not record.has_features:
        yield _lacking(record, "rollouts with exit_features", "feature_rates")
    if (exit_layer := schedule.exit_layer) is None:
        return
    if exit_layer not in record.exit_layers:
        known = ", ".join(map(str, record.exit_layers)) or "none"
        yield f"{_lacking(record, f'roots from exit_layer {exit_layer}', 'exit_coverage')}; layers it holds: {known}"
    elif schedule.num_exit_candidates > (width := record.num_candidates(exit_layer)):
        what = f"more than {max(0, width - 1)} roots per row from the exit after layer {exit_layer}"
        yield _lacking(record, what, "exit_coverage")
    if schedule.exit_features and exit_layer < (last := max(record.feature_layers, default=0)):
        yield f"the exit after layer {exit_layer} cannot send features of layer {last}, which the draft reads"


def complaints(prompt: PromptRecord, record: AcceptanceRecord) -> Iterator[str]:
    """Yield messages about what is wrong with a prompt of a record."""
    length = len(prompt.text)
    if not length:
        yield "there is no text"
    if prompt.prompt_length < 1:
        yield f"prompt_length is {prompt.prompt_length}, not at least 1"
    if length > record.max_new_tokens:
        yield f"{length} tokens of text, more than max_new_tokens {record.max_new_tokens}"
    if missing := set(record.exit_layers) - set(prompt.exits):
        yield f"no exit after layer {', '.join(map(str, sorted(missing)))}"
    for name, found, wanted in (
        ("trees", prompt.tree_ranks, record.trees),
        ("chains", prompt.chain_drafts, record.chains),
    ):
        if len(found) != len(wanted):
            yield f"drafts of {len(found)} {name}, not {len(wanted)}"
    yield from _misshapen(prompt, record)


def _misshapen(prompt: PromptRecord, record: AcceptanceRecord) -> Iterator[str]:
    length = len(prompt.text)
    for name, array, width in _arrays(prompt, record):
        shape = (length,) if name == "margins" else (length, array.shape[-1] if width is None else width)
        if array.shape != shape:
            yield f"{name} has shape {array.shape}, not {shape}: a row for each token of text"
        elif name.endswith("acceptance") and ((array < 0) | (array > 1)).any():
            yield f"{name} holds what is no probability"
        elif name.endswith("stream_hits") and (array < 0).any():
            yield f"{name} hold {array.min()}, which is no number of guesses"


def _arrays(prompt: PromptRecord, record: AcceptanceRecord) -> Iterator[tuple[str, NDArray[Any], int | None]]:
    """Yield the name and content of each array that a prompt has or needs, and its width (None: any width)."""
    needed = ("rollouts", "alternatives", *SAMPLED_ARRAYS[: 2 if record.temperature else 0])
    with_streams = {"stream_hits": prompt.rollouts, "feature_stream_hits": prompt.feature_rollouts}
    for name in ("margins", "rollouts", "alternatives", *OPTIONAL_ARRAYS, *SAMPLED_ARRAYS):
        is_needed = record.drafter is not None and name in needed
        is_needed |= record.num_streams > 0 and len(with_streams.get(name, ())) > 0
        if is_needed or len(getattr(prompt, name)):
            yield name, getattr(prompt, name), None if name == "alternatives" else record.max_window
    for layer, ids in prompt.exits.items():
        yield f"exits[{layer}]", ids, None
    for tree, ranks in zip(record.trees, prompt.tree_ranks, strict=False):
        yield f"tree_ranks of {tree.drafter}", ranks, tree.depth
    for chain, drafts in zip(record.chains, prompt.chain_drafts, strict=False):
        yield f"{chain.drafter}'s rollouts", drafts, record.max_window


OPTIONAL_ARRAYS = ("feature_rollouts", "stream_hits", "feature_stream_hits")
SAMPLED_ARRAYS = ("draft_acceptance", "refused_drafts", "feature_draft_acceptance", "feature_refused_drafts")
"""Arrays of records of sampled texts only."""
