"""The models of a record, loaded from their folders into this process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from calibrate.recording.recorded_drafters import RecordedFinder, RecordedHead, TreeDrafter, digest_of
from decoding.errors import ModelFormatError
from runtime.backends.backend import Backend
from runtime.backends.eager import arithmetic, backend_opener, torch_threads
from runtime.backends.lane_device import EAGER, Device, Dtype
from runtime.drafters.eagle.drafter import EagleDrafter
from runtime.drafters.hydra import HydraDrafter
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.language_model.model import DraftModel
from runtime.drafters.medusa import MedusaDrafter
from runtime.drafters.prompt_lookup import PROMPT_LOOKUP_KIND, load_prompt_lookup
from runtime.drafters.registry import STREAM_KIND, DrafterContext, kind_of, load_drafter
from runtime.drafters.streams import load_streams
from runtime.models.decoder import Decoder, load_decoder
from runtime.models.model_folder import NamedFolder
from runtime.target.early_exits import ExitHeads, load_exits


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedModels:
    """The models of a record: a target, and what there is of a draft model, trained exits, heads and prompt lookup.

    `backend` computes the target, torch if there is nothing else, and the draft has its own; `computed_by` is the name
    of either. `weights` is their form; None where it is the type of the tensors.
    """

    target_name: str
    drafter_name: str | None
    target: Decoder
    draft: DraftModel | None
    exits: ExitHeads | None = None
    heads: tuple[RecordedHead, ...] = ()
    finders: tuple[RecordedFinder, ...] = ()
    backend: Backend | None = None
    computed_by: str = "torch"
    weights: str | None = None

    @property
    def dtype(self) -> str:
        """Form of the weights, such as `bfloat16`."""
        return self.weights or str(self.target.embedding.weight.dtype).removeprefix("torch.")

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Target layers that the draft's exit features come from."""
        return () if self.draft is None else self.draft.config.exit_features

    @property
    def num_streams(self) -> int:
        """Streams of the draft model; 0 without."""
        streams = None if self.draft is None else self.draft.config.streams
        return streams.num_streams if streams else 0


def load_models(
    target: NamedFolder,
    drafter: NamedFolder | None,
    exits_folder: Path | None,
    *,
    heads: Sequence[NamedFolder] = (),
    dtype: Dtype,
    device: str = EAGER,
    num_threads: int | None = None,
) -> RecordedModels:
    """Load a pair, the target's exits, and heads, streams and prompt lookup.

    `device` computes as in a lane of it, but heads are torch's everywhere; `num_threads` are this process's from now
    on, None as many as torch has.

    Raises:
        ConfigError: the device is not there, or does not compute with this form.
        ModelError: a folder is missing, damaged, or does not fit the target.
    """
    num_threads = num_threads or torch.get_num_threads()
    computing = Device.of_lane(device)
    torch.set_num_threads(torch_threads(computing, num_threads))
    new_backend = backend_opener(computing, dtype, num_threads=num_threads)
    decoder = load_decoder(target.folder, dtype=arithmetic(dtype))
    backend = new_backend(decoder)  # it may move the weights, and exits go where they are

    def load_target() -> Decoder:
        if decoder.embedding.weight.is_cpu:
            return decoder
        return load_decoder(target.folder, dtype=arithmetic(dtype), with_layers=False)

    is_lookup = {head: kind_of(head.folder) == PROMPT_LOOKUP_KIND for head in heads}
    context = DrafterContext(target_folder=target.folder, dtype=arithmetic(dtype), load_target=load_target)
    return RecordedModels(
        target_name=target.name,
        drafter_name=None if drafter is None else drafter.name,
        target=decoder,
        draft=None if drafter is None else _load_draft(drafter.folder, context, new_backend),
        exits=None if exits_folder is None else load_exits(exits_folder, decoder, dtype=arithmetic(dtype)),
        heads=tuple(
            RecordedHead(head.name, _load_head(head.folder, decoder, context), digest_of(head.folder))
            for head in heads
            if not is_lookup[head]
        ),
        finders=tuple(
            RecordedFinder(head.name, load_prompt_lookup(head.folder), digest_of(head.folder))
            for head in heads
            if is_lookup[head]
        ),
        backend=backend,
        computed_by=computing.backend,
        weights=dtype,
    )


def _load_draft(folder: Path, context: DrafterContext, new_backend: Callable[[Decoder], Backend]) -> DraftModel:
    drafter = load_drafter(folder, context)
    if not isinstance(drafter, Drafter) or not isinstance(drafter.model, DraftModel):
        raise ModelFormatError(f"{folder}: is not a draft model")
    drafter.run_on(new_backend)
    return drafter.model


def _load_head(folder: Path, target: Decoder, context: DrafterContext) -> TreeDrafter:
    if kind_of(folder) == STREAM_KIND:
        return load_streams(folder, target)
    drafter = load_drafter(folder, context)
    if not isinstance(drafter, EagleDrafter | HydraDrafter | MedusaDrafter):
        raise ModelFormatError(f"{folder}: is a draft model, not a head of the target")
    return drafter
