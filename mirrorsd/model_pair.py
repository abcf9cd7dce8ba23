"""Which models work together: a target, its drafter and its exits, by what a user calls them. No weights are read.

A target may be a shipped shape, of which only the sizes are there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from decoding.errors import ConfigError, ModelError, ModelFormatError, shown
from decoding.files import named_path
from decoding.progress import ReportProgress
from decoding.schedule import Method, Schedule
from hwprofiles.model_shape import ModelShape, model_shape, shipped_models
from runtime.drafters.registry import CAUSAL_LM_KIND, KINDS, find_drafter, kind_of, named_drafter, shipped_for
from runtime.models.hf_config import unheeded
from runtime.models.model_folder import (
    PREFIX,
    NamedFolder,
    described_model,
    is_hub_id,
    is_model_name,
    resolve_model,
    save_shape,
)

_FAMILIES: Final = {
    "Qwen3": "Qwen3ForCausalLM",
    "Qwen2": "Qwen2ForCausalLM",
    "Mistral": "MistralForCausalLM",
    "OPT": "OPTForCausalLM",
}
"""Architectures by the beginnings of models' names; any other is a Llama."""


def is_shipped_shape(name: str) -> bool:
    """Return whether a name is `shape:` with a shape that ships, and no path of the user's."""
    own = name.removeprefix(PREFIX)
    return name.startswith(PREFIX) and own.lower() in shipped_models() and not named_path(own).exists()


def shipped_shape_folder(name: str) -> Path:
    """Return a folder with random weights for a shipped shape; `ModelError` where no decoder here has its parts."""
    own = name.removeprefix(PREFIX).lower()
    return save_shape(_as_config(model_shape(own), name), own, source=name)


def _as_config(shape: ModelShape, name: str) -> dict[str, Any]:
    """Return a config.json of that shape; raises `ModelError` where it has parts that no decoder here has."""
    family = next((own for start, own in _FAMILIES.items() if shape.name.startswith(start)), "LlamaForCausalLM")
    lacking = {
        "with experts": shape.num_experts > 0,
        "with parallel tracks": shape.num_tracks > 1,
        "with layers of several kinds": not shape.is_uniform,
        "without gates": not shape.is_gated and family != "OPTForCausalLM",
    }
    if parts := next((words for words, has in lacking.items() if has), None):
        raise ModelError(f"{name}: a shape {parts} is simulated, but no model of it runs here")
    own: dict[str, Any] = {"ffn_dim": shape.intermediate_size}
    if family != "OPTForCausalLM":
        own = {
            "intermediate_size": shape.intermediate_size,
            "num_key_value_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "rms_norm_eps": 1e-6,
        }
    if family == "MistralForCausalLM":
        own["sliding_window"] = None
    return {
        "architectures": [family],
        "vocab_size": shape.vocab_size,
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "num_attention_heads": shape.num_heads,
        "max_position_embeddings": shape.max_position,
        "tie_word_embeddings": shape.tie_embeddings,
        **own,
    }


Dtype = Literal["bfloat16", "float32", "int8", "int4"]
NO_DRAFTER: Final = "none"
"""In place of a drafter's name: heads and prompt lookup draft alone."""

_Role = Literal["exit adapters", "a draft model", "a head"]
"""What a folder is asked for; a head is whatever drafts by a method of its own, without the pair's draft model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPair:
    """A target and what drafts for it, as the user calls them; `dtype` is the form of the weights.

    Folders are called by absolute paths. Without trained adapters (`exits`) exits are read by the plain logit lens;
    `heads` are those of the target, its streams, and prompt lookup.
    """

    target: str
    target_folder: Path
    drafter: NamedFolder | None
    exits: NamedFolder | None
    dtype: Dtype
    heads: tuple[NamedFolder, ...] = ()

    def unheeded(self, temperature: float = 0.0) -> str | None:
        """Return what the target's folder asks of texts that no run applies (`hf_config.unheeded`); None if nothing."""
        return unheeded(self.target_folder, temperature)

    def head_for(self, method: Method) -> str | None:
        """Return the name of the first head for a method; None if there is none."""
        return next((name for name, own in self.head_methods.items() if own == method), None)

    @property
    def head_methods(self) -> Mapping[str, Method]:
        """Return each head's method by the head's name; `ModelFormatError` where its configuration is damaged."""
        methods = {head.name: KINDS[kind_of(head.folder)].method for head in self.heads}
        return {name: method for name, method in methods.items() if method is not None}

    def only_for(self, schedule: Schedule) -> "ModelPair":
        """Return the pair with only what drafts in this schedule."""
        heads = tuple(head for head in self.heads if head.name == schedule.drafter)
        return replace(self, heads=heads, drafter=None if heads else self.drafter)

    def with_drafter(self, schedule: Schedule) -> Schedule:
        """Return the schedule with its drafter named: the model here that drafts by its method; else `ConfigError`."""
        traits = schedule.traits
        if traits.drafts == "nobody" or traits.is_simulated_only:
            return schedule
        name = name_of(self.drafter) if traits.has_draft_model else self.head_for(schedule.method)
        if name is None:
            given = ", ".join(head.name for head in self.heads) or "none"
            head = f"its own kind of head, and those at hand are {given}"
            needed = "a draft model" if traits.has_draft_model else head
            raise ConfigError(f"method {schedule.method} needs {needed}: name one with --drafter")
        return schedule.model_copy(update={"drafter": name})


def find_pair(
    target: str | Path,
    *,
    drafter: str | Path | None = None,
    exits: str | Path | None = None,
    heads: Sequence[str | Path] | str | Path | None = None,
    dtype: Dtype = "bfloat16",
    progress: ReportProgress = lambda _step, _share: None,
) -> ModelPair:
    """Find the models; where drafter, exits or heads are not named, those that ship for the target are taken.

    Args:
        target: the default model's name, a Hugging Face folder, a hub id, or `shape:` and a config.json or a shape that
            ships, for a model with random weights.
        drafter: name or folder of a draft trained for the target, or any model with its tokenizer as a target is named;
            None for the first that ships, if any does, and `none` for no draft model.
        exits: name or folder; None for the first that ships, if any does.
        heads: name or folder of a head, streams or prompt lookup, or several of these; None for all that ship.
        dtype: of weights and arithmetic.
        progress: called with what is under way and the share that is done.

    Raises:
        ModelError: a model is not to be had, or is of an unsupported family.
        ConfigError: there is no such `dtype`.
    """
    if dtype not in get_args(Dtype):
        raise ConfigError(f"dtype is {shown(dtype)}: it is one of {', '.join(get_args(Dtype))}")
    name = str(target)

    def check(folder: Path) -> None:
        if drafter is not None and str(drafter) != NO_DRAFTER:
            _require_fit(str(drafter), folder)

    if is_shipped_shape(name):
        folder = shipped_shape_folder(name)
    else:
        folder = resolve_model(name, progress=progress, check=check)

    def shipped(role: _Role) -> tuple[NamedFolder, ...]:
        return tuple(model for model in shipped_for(folder.name) if kind_of(model.folder) in _kinds(role))

    def chosen(role: _Role, name: str | Path | None) -> NamedFolder | None:
        return next(iter(shipped(role)), None) if name is None else _named(role, name)

    own_heads = [heads] if isinstance(heads, str | Path) else heads
    return ModelPair(
        target=name if is_model_name(name) else str(folder.absolute()),  # files are read from anywhere
        target_folder=folder,
        drafter=None if str(drafter) == NO_DRAFTER else chosen("a draft model", drafter),
        exits=chosen("exit adapters", exits),
        dtype=dtype,
        heads=shipped("a head") if own_heads is None else tuple(_named("a head", name) for name in own_heads),
    )


def find_scheduled_pair(
    schedule: Schedule,
    target: str | Path,
    *,
    drafter: str | Path | None = None,
    exits: str | Path | None = None,
    dtype: Dtype = "bfloat16",
    progress: ReportProgress = lambda _step, _share: None,
) -> tuple[ModelPair, Schedule]:
    """Find the models that a schedule runs with; and the schedule with the name of what drafts for it.

    That is a draft model, a head, streams or prompt lookup, as its method asks. `drafter` is taken in place of the one
    that the schedule names; without either the one that ships for the target. Other arguments are those of `find_pair`.
    Exit adapters are the pair's only where the schedule takes an early exit.

    Raises:
        ConfigError: nothing is named, and nothing that drafts by the method ships for the target.
        ModelError: a model is not to be had, or is of an unsupported family.
    """
    named, drafts = drafter or schedule.drafter, schedule.traits.drafts
    models: dict[str, Any] = {"drafter": NO_DRAFTER, "heads": ()}
    if drafts == "draft":
        models["drafter"] = named
    elif drafts != "nobody":
        models["heads"] = None if named is None else (named,)
    pair = find_pair(target, exits=exits, dtype=dtype, progress=progress, **models)
    return replace(pair, exits=pair.exits if schedule.uses_exit else None), pair.with_drafter(schedule)


def name_of(model: NamedFolder | None) -> str | None:
    """Return the name that a user calls a model by; None where there is no model."""
    return None if model is None else model.name


def folder_of(model: NamedFolder | None) -> Path | None:
    """Return the folder of a model; None where there is no model."""
    return None if model is None else model.folder


def _require_fit(drafter: str, target_folder: Path) -> None:
    """Raise `ModelError` for a model with another tokenizer than the target's, before any weights are fetched."""
    if is_shipped_shape(drafter):
        return
    folder = described_model(drafter) if is_hub_id(drafter) else find_drafter(drafter)
    if kind_of(folder) == CAUSAL_LM_KIND:
        from runtime.drafters.language_model.folder import require_fit  # slow to import, and seldom needed

        require_fit(folder, target_folder)


def _kinds(role: _Role) -> list[str]:
    if role == "exit adapters":
        return ["mirrorsd_exits"]
    return [name for name, kind in KINDS.items() if (kind.method is not None) == (role == "a head")]


def _named(role: _Role, name: str | Path) -> NamedFolder:
    """Return the model of that name or folder; raises `ModelError` where it is not to be had or has another role."""
    # by its folder: lanes know no shapes that ship
    model = named_drafter(str(shipped_shape_folder(str(name)) if is_shipped_shape(str(name)) else name))
    found = kind_of(model.folder)
    if found not in _kinds(role):
        raise ModelFormatError(
            f"{model.folder}: is not {role}: config.json has speculators_model_type {found!r}, "
            f"expected {', '.join(_kinds(role))}"
        )
    return model
