"""Finds the models that work together (target, drafter, exits, heads) by the user's names, without reading weights.

A target may also be a shipped shape, which runs with random weights.
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
from runtime.backends.lane_device import Dtype
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
"""Architectures by how models' names begin; any other model is a Llama."""


def is_shipped_shape(name: str) -> bool:
    """Return whether a name is `shape:` and a shipped shape, and not an existing path."""
    own = name.removeprefix(PREFIX)
    return name.startswith(PREFIX) and own.lower() in shipped_models() and not named_path(own).exists()


def shipped_shape_folder(name: str) -> Path:
    """Return the folder of a model of random weights with a shipped shape; raises what `_as_config` raises."""
    own = name.removeprefix(PREFIX).lower()
    return save_shape(_as_config(model_shape(own), name), own, source=name)


def _as_config(shape: ModelShape, name: str) -> dict[str, Any]:
    """Return the config.json of a shape; raises `ModelError` if our decoders cannot run such a model."""
    family = next((own for start, own in _FAMILIES.items() if shape.name.startswith(start)), "LlamaForCausalLM")
    lacking = {
        "with experts": shape.num_experts > 0,
        "with parallel tracks": shape.num_tracks > 1,
        "with layers of several kinds": not shape.is_uniform,
        "without gates": not shape.is_gated and family != "OPTForCausalLM",
    }
    for words, has in lacking.items():
        if has:
            raise ModelError(f"{name}: a shape {words} can be simulated, but not run")
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


NO_DRAFTER: Final = "none"
"""Given as the drafter's name, it means no draft model: only heads and prompt lookup draft."""

_Role = Literal["exit adapters", "a draft model", "a head"]
"""What a folder is to be used as; "a head" is anything with a drafting method of its own, without a draft model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPair:
    """A target and what drafts for it, by the user's names.

    Attributes:
        target: its name, or the absolute path of its folder.
        exits: trained exit adapters; without them exits are read through the final norm and `lm_head` (logit lens).
        dtype: format of the weights.
        heads: draft heads of the target, its streams, and prompt lookup.
    """

    target: str
    target_folder: Path
    drafter: NamedFolder | None
    exits: NamedFolder | None
    dtype: Dtype
    heads: tuple[NamedFolder, ...] = ()

    def unheeded(self, temperature: float = 0.0) -> str | None:
        """Return the generation settings of the target's folder that no run applies, in words; None if none."""
        return unheeded(self.target_folder, temperature)

    def head_for(self, method: Method) -> str | None:
        """Return the name of the first head for a method; None if there is none."""
        return next((name for name, own in self.head_methods.items() if own == method), None)

    @property
    def head_methods(self) -> Mapping[str, Method]:
        """The method of each head by the head's name; raises `ModelFormatError` if a configuration is damaged."""
        methods = {head.name: KINDS[kind_of(head.folder)].method for head in self.heads}
        return {name: method for name, method in methods.items() if method is not None}

    def only_for(self, schedule: Schedule) -> "ModelPair":
        """Return the pair without the drafters that the schedule does not use."""
        heads = tuple(head for head in self.heads if head.name == schedule.drafter)
        return replace(self, heads=heads, drafter=None if heads else self.drafter)

    def with_drafter(self, schedule: Schedule) -> Schedule:
        """Return the schedule with the name of the pair's drafter for its method; `ConfigError` if there is none."""
        traits = schedule.traits
        if traits.drafts == "nobody" or traits.is_simulated_only:
            return schedule
        name = name_of(self.drafter) if traits.has_draft_model else self.head_for(schedule.method)
        if name is None:
            given = ", ".join(head.name for head in self.heads) or "none"
            head = f"its own kind of head, but only these are known: {given}"
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
    """Find the models; drafter, exits and heads that are not named are the shipped ones for the target.

    Args:
        target: the default model's name, a Hugging Face folder, a hub id, or for a model with random weights `shape:`
            and a config.json or a shipped shape.
        drafter: name or folder of a draft trained for the target, or any model with its tokenizer, named like a target;
            None for the first shipped one, if any, and `none` for no draft model.
        exits: name or folder; None for the first shipped ones, if any.
        heads: name or folder of a head, streams or prompt lookup, or several of these; None for all shipped ones.
        dtype: format of weights and arithmetic.
        progress: called with the current step and the share that is done.

    Raises:
        ModelError: a model cannot be found or fetched, or is of an unsupported family.
        ConfigError: there is no such `dtype`.
    """
    if dtype not in get_args(Dtype):
        raise ConfigError(f"dtype is {shown(dtype)}: it must be one of {', '.join(get_args(Dtype))}")
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
        target=name if is_model_name(name) else str(folder.absolute()),  # results may be read from another folder
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
    """Find the models that a schedule needs, and return them with the schedule, in which the drafter is named.

    The drafter is a draft model, a head, streams or prompt lookup, depending on the method: `drafter` if given, else
    the one that the schedule names, else the shipped one for the target. Other arguments are those of `find_pair`. Exit
    adapters are included only if the schedule uses an early exit.

    Raises:
        ConfigError: no drafter is named, and none ships for the target and the method.
        ModelError: a model cannot be found or fetched, or is of an unsupported family.
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
    """Return the user's name of a model; None without a model."""
    return None if model is None else model.name


def folder_of(model: NamedFolder | None) -> Path | None:
    """Return the folder of a model; None without a model."""
    return None if model is None else model.folder


def _require_fit(drafter: str, target_folder: Path) -> None:
    """Raise `ModelError` for a draft model with another tokenizer than the target's, before any weights are fetched."""
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
    """Return the model of that name or folder; raises `ModelError` if it cannot be found or has another role."""
    # Lane processes know only folders, not the names of shipped shapes.
    model = named_drafter(str(shipped_shape_folder(str(name)) if is_shipped_shape(str(name)) else name))
    found = kind_of(model.folder)
    if found not in _kinds(role):
        raise ModelFormatError(
            f"{model.folder}: is not {role}: config.json has speculators_model_type {found!r}, "
            f"expected {', '.join(_kinds(role))}"
        )
    return model
