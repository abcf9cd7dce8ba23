"""The models of a record: a target, its draft model and exits, and the drafters beside it, loaded into this process.

Drafters beside the draft model are heads, of whose trees a record keeps which nodes hold a text, and prompt lookup, of
which it keeps what is found. Shapes: N tokens of the text, P of the prompt; others by `runtime.models.decoder`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrate.prompts import EncodedPrompt
from calibrate.recording.reach import DynamicShape, Reach
from decoding.errors import ModelFormatError
from decoding.files import sha256_of
from decoding.record import Ids, RecordedChain, RecordedTree
from decoding.recorded.record_checks import FORMAT
from decoding.schedule import MAX_TREE
from decoding.tree_shape import cut, places_along
from hwprofiles.host import computing_host
from runtime.backends.backend import Backend
from runtime.backends.devices import require_device
from runtime.backends.lane_device import EAGER, Dtype
from runtime.drafters.eagle.drafter import EagleDrafter
from runtime.drafters.hydra import HydraDrafter
from runtime.drafters.language_model.model import DraftModel
from runtime.drafters.medusa import MedusaDrafter
from runtime.drafters.prompt_lookup import PromptLookupDrafter
from runtime.drafters.registry import STREAM_KIND, kind_of
from runtime.drafters.streams import StreamTree, load_streams
from runtime.drafters.window_drafter import WindowDrafter
from runtime.models.decoder import Decoder
from runtime.models.model_folder import NamedFolder
from runtime.target.early_exits import ExitHeads
from runtime.target.target_model import TargetModel
from runtime.worker.torch_models import TorchModels

_VALUES_PER_WEIGHT: Final = 16
TreeDrafter = EagleDrafter | HydraDrafter | MedusaDrafter | StreamTree


class RecordedHead(NamedTuple):
    """A head of the target, or its streams, as a user calls it; the digest changes with its weights and its tree."""

    name: str
    drafter: TreeDrafter
    digest: str

    def trees(self, shapes: Sequence[DynamicShape]) -> Iterator[RecordedTree]:
        """Yield the trees to record: of these shapes if they are dynamic, else the head's own."""
        drafter = self.drafter
        for method in drafter.methods:
            if isinstance(drafter, EagleDrafter):
                for depth, top_k in shapes:
                    yield RecordedTree(method=method, drafter=self.name, depth=depth, top_k=top_k)
            else:
                depth = max(map(len, drafter.paths))
                paths = cut(drafter.paths, MAX_TREE, depth)
                yield RecordedTree(method=method, drafter=self.name, depth=depth, paths=paths)

    def ranks(
        self,
        trees: Sequence[RecordedTree],
        ids: Sequence[int],
        *,
        start: int,
        states: Mapping[int, Tensor],
        target: Backend,
    ) -> list[Ids]:
        """Return for each tree the places, in its order, of the nodes that hold the text after `start`, [N, depth].

        `states` are the target's by layer, at all positions but the last, [P + N - 1, D].
        """
        drafter = self.drafter
        hidden_TED = torch.stack([states[layer] for layer in drafter.feature_layers], dim=1)
        features_TE = hidden_TED.flatten(-2) if drafter.raw_features else target.features(hidden_TED, is_raw=False)
        if isinstance(drafter, EagleDrafter):
            shapes = [(tree.depth, tree.top_k) for tree in trees]
            return drafter.ranks_along(ids, start=start, features_TE=features_TE, shapes=shapes)
        found = drafter.level_ranks(ids, start=start, features_TE=features_TE)
        return [places_along(found, tree.paths, tree.depth) for tree in trees]


class RecordedFinder(NamedTuple):
    """Prompt lookup as a user has set and called it; the digest changes with its settings."""

    name: str
    drafter: PromptLookupDrafter
    digest: str

    @property
    def chain(self) -> RecordedChain:
        """The entry of its windows in a record."""
        [method] = self.drafter.methods
        return RecordedChain(method=method, drafter=self.name)

    def windows(self, ids: Sequence[int], *, start: int, max_window: int) -> Ids:
        """Find windows after every prefix ids[:start], ..., [N, max_window]; -1 after a window's end."""
        index = self.drafter.index()
        index.extend(ids[:start])
        windows = np.full((len(ids) - start, max_window), -1, dtype=np.int32)
        for row, token in zip(windows, ids[start:], strict=True):
            found = index.continuation(max_window)
            row[: len(found)] = found
            index.extend([token])
        return windows


def digest_of(folder: Path) -> str:
    """Return the SHA-256 of every file of a folder of weights, in hexadecimal."""
    return " ".join(f"{path.name} {sha256_of(path)}" for path in sorted(folder.iterdir()) if path.is_file())


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedModels:
    """The models of a record: a target, and what there is of a draft model, trained exits, heads and prompt lookup.

    `model` computes the target, torch if there is nothing else, and the draft has its own; `computed_by` is the name
    of either. `weights` is their form; None where it is the type of the tensors.
    """

    target_name: str
    drafter_name: str | None
    target: Decoder
    draft: DraftModel | None
    exits: ExitHeads | None = None
    exits_name: str | None = None
    heads: tuple[RecordedHead, ...] = ()
    finders: tuple[RecordedFinder, ...] = ()
    model: TargetModel | None = None
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
    exits: NamedFolder | None,
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
    computing = require_device(device)
    models = TorchModels(computing, num_threads or torch.get_num_threads())
    loaded = models.load_target(target.folder, None if exits is None else exits.folder, dtype)
    decoder, finders, trees = models.decoder, list[RecordedFinder](), list[RecordedHead]()
    assert decoder is not None, "a target without its weights"

    def of(folder: Path) -> WindowDrafter | StreamTree:
        if kind_of(folder) == STREAM_KIND:
            return load_streams(folder, decoder)
        return models.load_drafter(target.folder, folder, dtype)

    for name, folder in heads:
        found = of(folder)
        if isinstance(found, PromptLookupDrafter):
            finders.append(RecordedFinder(name, found, digest_of(folder)))
        elif isinstance(found, TreeDrafter):
            trees.append(RecordedHead(name, found, digest_of(folder)))
        else:
            raise ModelFormatError(f"{folder}: is a draft model, not a head of the target")
    draft = None if drafter is None else getattr(of(drafter.folder), "model", None)
    if drafter is not None and not isinstance(draft, DraftModel):
        raise ModelFormatError(f"{drafter.folder}: is not a draft model")
    return RecordedModels(
        target_name=target.name,
        drafter_name=None if drafter is None else drafter.name,
        exits_name=None if exits is None else exits.name,
        target=decoder,
        model=loaded,
        draft=draft,
        exits=models.heads,
        heads=tuple(trees),
        finders=tuple(finders),
        computed_by=computing.backend,
        weights=dtype,
    )


def fingerprint(models: RecordedModels, prompts: Sequence[EncodedPrompt], reach: Reach) -> str:
    """Return 16 hexadecimal digits that change with anything a record depends on; of the weights a sample is read."""
    known = asdict(reach) | {"enough": None}
    digest = hashlib.sha256(json.dumps([FORMAT, known, [prompt._asdict() for prompt in prompts]]).encode())
    draft = None if models.draft is None else models.draft.config
    digest.update(
        f"{models.target_name} {models.drafter_name} {models.exits_name} {models.target.config} {draft}".encode()
    )
    digest.update(f"{models.computed_by} {models.dtype} {computing_host(models.computed_by)}".encode())
    for drafters in (models.heads, models.finders):
        digest.update(json.dumps([(one.name, one.digest) for one in drafters]).encode())
    adapters = models.exits.adapters if models.exits is not None else {}
    drafts = () if models.draft is None else (models.draft,)
    for module in (models.target, *drafts, *(adapters[layer] for layer in sorted(adapters))):
        for name, weight in module.named_parameters():
            flat = weight.detach().flatten()
            places = torch.arange(_VALUES_PER_WEIGHT) * (len(flat) - 1) // (_VALUES_PER_WEIGHT - 1)
            digest.update(name.encode())
            digest.update(flat[places].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
