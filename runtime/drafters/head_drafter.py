"""Base classes of draft heads: warm-up, static trees from the target's last hidden state, and folders of heads."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from decoding.errors import ModelError, ModelFormatError
from decoding.schedule import Schedule
from decoding.tree_shape import Path as TreePath
from decoding.tree_shape import Ranks, cut
from runtime.arrays import as_tensor, as_tensors, numpy_type
from runtime.drafters.trees import candidates_per_level, ranks_by_level, require_tree
from runtime.drafters.window_drafter import WindowDrafter, drafted
from runtime.models.decoder import Decoder
from runtime.models.hf_config import CONFIG_FILE
from runtime.models.vocabulary import OutputRows
from runtime.storage.weight_folder import FolderConfig, load_trained, save_trained

_READ = 40
"""Tokens of the text for warm-up."""


class FeatureDrafter(WindowDrafter):
    """A drafter that reads the target's features, and computes in torch on the device of its weights."""

    device: torch.device
    dtype: torch.dtype
    hidden_size: int
    _warm_for: Schedule | None = None

    def prepare(self, schedule: Schedule, *, num_prompt: int, capacity: int) -> None:  # noqa: ARG002
        """See `WindowDrafter`; warms up on a GPU, where the first call of a kernel takes as long as many rounds."""
        if self.device.type != "cpu" and schedule != self._warm_for:
            self.warm_up(schedule)
            self._warm_for = schedule

    def warm_up(self, schedule: Schedule) -> None:
        """Draft once for every number of tokens that a round may commit; the current sequence is lost."""
        most = schedule.num_speculative_tokens + 1
        size = len(self.feature_layers) * self.hidden_size
        features_TE = torch.zeros(_READ, size, dtype=self.dtype, device=self.device)
        capacity = _READ + most * (most + 1) // 2
        self.prefill([0] * _READ, schedule=schedule, capacity=capacity, features_TE=features_TE[1:])
        drafted(self.rollout())
        for count in range(1, most + 1):
            drafted(self.rollout([0] * count, features_TE[:count]))


class HeadDrafter(FeatureDrafter):
    """A drafter with a static tree of its heads' best ids; at any temperature they are fixed before the target samples.

    `model` is a `KeptRowHeads`, `paths` are the nodes of the tree in order, `num_layers` is that of the target.
    """

    def __init__(self, model: Any, paths: Sequence[TreePath], *, num_layers: int) -> None:
        self.model, self.paths = model, tuple(paths)
        norm: Tensor = model.target_norm
        self.device, self.dtype, self.hidden_size = norm.device, norm.dtype, len(norm)
        self.feature_layers = (num_layers,)
        self._tree: tuple[TreePath, ...] = ()
        self._counts: tuple[int, ...] = ()

    @torch.inference_mode()
    def level_ranks(self, ids: Sequence[int], *, start: int, features_TE: Tensor) -> Ranks:
        """Return `ranks_by_level` of the heads along a text, [N, K]; the last two positions need no features."""
        self.model.output.add_prompt_tokens(ids[:start])
        num_heads, features_TE = self.model.config.num_heads, features_TE.to(self.device)
        return ranks_by_level(ids, start, num_heads, lambda first: self.candidates_along(ids, first, features_TE))

    @abstractmethod
    def candidates_along(self, ids: Sequence[int], first: int, features_TE: Tensor) -> Iterable[Tensor]:
        """Return each head's best ids at the positions of a text from `first` on, [positions, C], best first."""

    def prefill(
        self, prompt: Sequence[int], *, schedule: Schedule, capacity: int, features_TE: Tensor | None = None, **_: Any
    ) -> None:
        """See `WindowDrafter`; the schedule determines the size and depth of trees."""
        assert features_TE is not None, "heads without the target's features"
        self._set_tree(schedule.tree_size, schedule.num_speculative_tokens)
        self.model.output.add_prompt_tokens(prompt)
        self._read_prompt(prompt, features_TE.to(self.device), capacity)

    @abstractmethod
    def _read_prompt(self, prompt: Sequence[int], features_TE: Tensor, capacity: int) -> None:
        """Read a prompt, with the target's features of all its positions but the last."""

    def _set_tree(self, size: int, depth: int) -> None:
        self._tree = cut(self.paths, size, depth)
        self._counts = candidates_per_level(self._tree)


class KeptRowHeads(nn.Module):
    """Heads whose output rows are rows of the target's `lm_head`: kept ones, and those of the prompt (`output`)."""

    output: OutputRows
    target_norm: Tensor

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.register_buffer("target_norm", torch.ones(hidden_size), persistent=False)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that a folder stores, by name."""
        return own_weights(self)

    def share(self, target: Decoder, kept_ids: Tensor) -> None:
        """Use the target's final norm and the kept rows of its `lm_head`, frozen."""
        head_VD, self.target_norm = target.lm_head.weight.detach(), target.final_norm.detach()
        self.output = OutputRows(kept_ids, head_VD[kept_ids], head_VD)


class HeadFolderConfig(FolderConfig):
    """Base of the `config.json` of heads."""

    @abstractmethod
    def build(self, target: Decoder) -> Any:
        """Return an untrained module; raise `ModelError` for sizes that contradict each other."""


class TreeFolderConfig(HeadFolderConfig):
    """Base of the `config.json` of weights with a static tree; `paths` are its nodes, see `decoding.tree_shape`."""

    depth_field: ClassVar[str] = "num_heads"
    """The name of the field with the number of levels that the weights can draft."""

    paths: Annotated[tuple[TreePath, ...], Field(max_length=4096)]

    @model_validator(mode="after")
    def _is_tree(self) -> Self:
        require_tree(self.paths, getattr(self, self.depth_field))
        return self


C = TypeVar("C", bound=HeadFolderConfig)


def own_weights(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a folder stores, by name: all except rows of the target."""
    rows = ("embedding.weight", "lm_head.weight")
    return {name: weight for name, weight in module.named_parameters() if not name.endswith(rows)}


def save_tree_heads(
    kind: type[TreeFolderConfig],
    heads: Any,
    paths: Sequence[TreePath],
    folder: Path,
    *,
    metadata: Mapping[str, Any],
    kept_ids: Tensor | None = None,
    **of_target: Any,
) -> None:
    """Write heads or streams with the nodes of their tree by `save_trained`, which gets `of_target` too.

    `kept_ids` are the target ids that they may propose; None for those of `heads.output`.
    """
    kept_ids = heads.output.kept_ids if kept_ids is None else kept_ids
    names = kind.model_fields.keys() - TreeFolderConfig.model_fields.keys()
    fields = {name: getattr(heads.config, name) for name in names} | {"paths": tuple(paths), "metadata": dict(metadata)}
    save_trained(folder, kind, heads.trained, kept_ids=kept_ids, fields=fields, **of_target)


def read_head(folder: Path, kind: type[C], target: Decoder, *, dtype: torch.dtype) -> tuple[C, Any, Tensor]:
    """Return a folder's config, its frozen module with weights in `dtype`, and the target ids that it may propose.

    Raises `ModelError` for another target, `ModelFormatError` for a missing, damaged or contradictory file.
    """
    stored = load_trained(folder, kind, target)
    try:
        with torch.device("meta"):
            model = stored.config.build(target)
    except ModelError as error:
        raise ModelFormatError(f"{folder / CONFIG_FILE}: {error}") from error
    shapes = {name: weight.shape for name, weight in own_weights(model).items() if weight.is_meta}
    model.load_state_dict(as_tensors(stored.unpacked(shapes, numpy_type(dtype))), strict=False, assign=True)
    model.eval().requires_grad_(requires_grad=False)
    return stored.config, model, as_tensor(stored.kept_ids).to(target.embedding.weight.device)


def load_head(folder: Path, kind: type[C], target: Decoder, *, dtype: torch.dtype) -> tuple[C, Any]:
    """Return a folder's config and its head, sharing rows of the target, in `dtype` on the target's device.

    Errors are those of `read_head`.
    """
    config, model, kept_ids = read_head(folder, kind, target, dtype=dtype)
    model.share(target, kept_ids)
    return config, model.to(device=kept_ids.device, dtype=dtype)
