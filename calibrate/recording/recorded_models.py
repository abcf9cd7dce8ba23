"""Loads the models of an acceptance record into this process: target, exits, draft model, draft heads, prompt lookup.

Shape legend: N tokens of the text, P of the prompt; others as in `runtime.models.decoder`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from calibrate.prompts import EncodedPrompt
from calibrate.recording.reach import DynamicShape, Reach
from decoding.errors import ModelFormatError
from decoding.methods import METHODS
from decoding.record import Ids, RecordedChain, RecordedTree
from decoding.recorded.record_checks import FORMAT
from decoding.schedule import MAX_TREE, MAX_WINDOW, Schedule
from decoding.tree_shape import cut, places_along
from hwprofiles.host import computing_host
from runtime.arrays import Array, as_array, as_tensor, stacked
from runtime.backends.backend import Backend
from runtime.backends.devices import require_device
from runtime.backends.lane_device import EAGER, Dtype
from runtime.drafters.eagle.drafter import EagleDrafter
from runtime.drafters.hydra import HydraDrafter
from runtime.drafters.language_model.draft_passes import DraftPasses
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.medusa import MedusaDrafter
from runtime.drafters.registry import STREAM_KIND, kind_of
from runtime.drafters.streams import StreamTree
from runtime.drafters.window_drafter import WindowDrafter, drafted
from runtime.models.model_folder import NamedFolder
from runtime.storage.sampled_digest import sampled_sha256
from runtime.target.target_model import TargetModel
from runtime.worker.server import models_on

TreeDrafter = EagleDrafter | HydraDrafter | MedusaDrafter | StreamTree


class RecordedHead(NamedTuple):
    """A draft head of the target, or its streams, under the user's name for it."""

    name: str
    drafter: TreeDrafter

    def trees(self, shapes: Sequence[DynamicShape]) -> Iterator[RecordedTree]:
        """Yield the trees to record: dynamic ones in each of `shapes`, or the head's static tree."""
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
        states: Mapping[int, Array],
        target: Backend,
    ) -> list[Ids]:
        """Return for each tree the indices of the nodes that agree with the text after each position, [N, depth].

        `states`: the target's hidden states by layer, at all positions but the last, [P + N - 1, D].
        """
        drafter = self.drafter
        hidden_TED = stacked([states[layer] for layer in drafter.feature_layers], 1)
        features_TE = as_tensor(as_array(target.features(hidden_TED, is_raw=drafter.raw_features)))
        if isinstance(drafter, EagleDrafter):
            shapes = [(tree.depth, tree.top_k) for tree in trees]
            return drafter.ranks_along(ids, start=start, features_TE=features_TE, shapes=shapes)
        found = drafter.level_ranks(ids, start=start, features_TE=features_TE)
        return [places_along(found, tree.paths, tree.depth) for tree in trees]


class RecordedFinder(NamedTuple):
    """Prompt lookup, or another drafter that only reads the text, under the user's name for it."""

    name: str
    drafter: WindowDrafter

    @property
    def chain(self) -> RecordedChain:
        """The description of its windows in a record."""
        [method] = self.drafter.methods
        return RecordedChain(method=method, drafter=self.name)

    def windows(self, ids: Sequence[int], *, start: int, max_window: int) -> Ids:
        """Return the windows drafted after each prefix from ids[:start] on, [N, max_window]; padded by -1."""
        chain = self.chain
        schedule = Schedule(
            method=chain.method,
            drafter=chain.drafter,
            target_lane="target",
            draft_lane="target",
            num_speculative_tokens=min(max_window, MAX_WINDOW),
        )
        self.drafter.prefill(ids[:start], schedule=schedule, capacity=len(ids))
        windows = np.full((len(ids) - start, max_window), -1, dtype=np.int32)
        for place, row in enumerate(windows, start):
            found = drafted(self.drafter.rollout(ids[max(start, place - 1) : place])).tokens
            row[: len(found)] = found
        return windows


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedModels:
    """The models of a record.

    Attributes:
        draft: the draft model; None without one.
        heads, finders: draft heads and streams; prompt lookup.
        computed_by: name of the back end.
        dtype: weight format.
        digests: (name, hash) of each model's files.
    """

    target_name: str
    drafter_name: str | None
    target: TargetModel
    draft: DraftPasses | None
    exits_name: str | None = None
    heads: tuple[RecordedHead, ...] = ()
    finders: tuple[RecordedFinder, ...] = ()
    computed_by: str = "torch"
    dtype: str = "float32"
    digests: tuple[tuple[str, str], ...] = ()

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Target layers whose hidden states are the draft's exit features."""
        return () if self.draft is None else self.draft.config.exit_features

    @property
    def num_streams(self) -> int:
        """Number of streams of the draft model; 0 without streams."""
        return 0 if self.draft is None else self.draft.num_streams


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
    """Load a target, its draft model and exits, and draft heads, streams and prompt lookup (`heads`).

    Models compute as on a lane of `device`; heads always compute with torch. `num_threads` stays set for this process
    (None: torch's number).

    Raises:
        ConfigError: the device does not exist, or does not support this weight format.
        ModelError: a folder is missing, damaged, or does not fit the target.
    """
    computing = require_device(device)
    models = models_on(computing, num_threads or torch.get_num_threads())
    loaded = models.load_target(target.folder, None if exits is None else exits.folder, dtype)
    finders, trees, draft = list[RecordedFinder](), list[RecordedHead](), None

    def load(folder: Path) -> WindowDrafter | StreamTree:
        if kind_of(folder) == STREAM_KIND:
            return models.load_streams(folder).streams
        return models.load_drafter(target.folder, folder, dtype)

    for name, folder in heads:
        found = load(folder)
        if isinstance(found, TreeDrafter):
            trees.append(RecordedHead(name, found))
        elif all(METHODS[method].finds_text for method in found.methods):
            finders.append(RecordedFinder(name, found))
        else:
            what = "a draft model" if isinstance(found, Drafter) else f"a {type(found).__name__}"
            raise ModelFormatError(f"{folder}: is {what}, not a head of the target or a lookup in its text")
    if drafter is not None:
        found = load(drafter.folder)
        if not isinstance(found, Drafter):
            raise ModelFormatError(f"{drafter.folder}: is not a draft model")
        draft = found.model
    named = [target, *filter(None, (drafter, exits)), *heads]
    return RecordedModels(
        target_name=target.name,
        drafter_name=None if drafter is None else drafter.name,
        exits_name=None if exits is None else exits.name,
        target=loaded,
        draft=draft,
        heads=tuple(trees),
        finders=tuple(finders),
        computed_by=computing.backend,
        dtype=dtype,
        digests=tuple((one.name, sampled_sha256(one.folder)) for one in named),
    )


def fingerprint(models: RecordedModels, prompts: Sequence[EncodedPrompt], reach: Reach) -> str:
    """Return 16 hexadecimal digits: a hash of everything that a record depends on."""
    seed, computed_by = reach.seed if reach.temperature else 0, models.computed_by
    known = asdict(reach) | {"enough": None, "seed": seed}
    names = models.target_name, models.drafter_name, models.exits_name
    by = computed_by, models.dtype, computing_host(computed_by)
    whole = FORMAT, known, [prompt._asdict() for prompt in prompts], names, models.digests, by
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:16]
