"""Options that several verbs share, each written once, and what the shell completes; nothing here loads a model."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from calibrate.prompts import Prompt, PromptSet
    from decoding.progress import ReportProgress
    from decoding.record import AcceptanceRecord
    from hwprofiles.profile import Profile
    from mirrorsd.model_pair import ModelPair

DEFAULT_TARGET = "smollm2-135m-instruct"
MOST_MINUTES = 24 * 60
MAX_NEW_TOKENS = 64
MAX_WINDOW = 8
"""How far calibrations and records reach where nothing else is asked for."""


class Dtype(StrEnum):
    """Types of weights and arithmetic."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    INT4 = "int4"


def optional(what: str, **settings: Any) -> Any:
    """An option whose default is told by its help, `what`; `settings` are Typer's."""
    if "min" in settings:
        settings.setdefault("metavar", "N")  # the name of its type would crowd out names and help
    return typer.Option(help=what, show_default=False, **settings)


def num_tokens(text: str) -> int:
    """Return a number of tokens, one at least, as people type it: `8192`, `8k`; `ConfigError` where it is none."""
    from decoding.errors import ConfigError, shown

    plain = text.strip().lower()
    digits = plain.removesuffix("k")
    if not (digits.isdecimal() and len(digits) < 10 and int(digits) > 0):
        raise ConfigError(f"{shown(text)} is no number of tokens, 1 or more, such as 8192 or 8k")
    return int(digits) * (1 if digits == plain else 1024)


def shape_names(incomplete: str) -> list[str]:
    """Return the shipped model shapes that begin so."""
    from hwprofiles.model_shape import shipped_models

    return _beginning(incomplete, shipped_models())


def draft_names(incomplete: str) -> list[str]:
    """Return what drafts and begins so."""
    from hwprofiles.models.head_shapes import HEADS

    return shape_names(incomplete) + _beginning(incomplete, tuple(HEADS))


def device_names(incomplete: str) -> list[str]:
    """Return the shipped devices that begin so."""
    from hwprofiles.sheets import shipped_names

    return _beginning(incomplete, shipped_names("device"))


def weight_names(incomplete: str) -> list[str]:
    """Return the formats of weights that begin so."""
    from hwprofiles.weights.formats import weight_formats

    return _beginning(incomplete, tuple(weight_formats()))


def engine_names(incomplete: str) -> list[str]:
    """Return the engines that begin so, of which something was measured."""
    from hwprofiles import engines

    return _beginning(incomplete, engines.engine_names())


def platform_names(incomplete: str) -> list[str]:
    """Return the shipped platforms that begin so, and the devices, each of which makes a machine."""
    from hwprofiles.sheets import shipped_names

    return _beginning(incomplete, (*shipped_names("platform"), *shipped_names("device")))


def target_names(incomplete: str) -> list[str]:
    """Return the embedded model, and the shipped shapes as models with random weights."""
    return _beginning(incomplete, (DEFAULT_TARGET, *(f"shape:{name}" for name in shape_names(""))))


def drafter_names(incomplete: str) -> list[str]:
    """Return the draft models, heads and exit adapters that ship; after a comma the next one of a list."""
    from runtime.drafters.registry import shipped_names

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(last, (*shipped_names(), "none"))]


def _beginning(incomplete: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def counts(option: str, text: str, most: int, such_as: str) -> tuple[int, ...]:
    """Return the numbers of 1..`most` that an option lists, one at least; `ConfigError` where they are others."""
    from decoding.errors import ConfigError, shown

    parts = [part.strip() for part in text.split(",") if part.strip()]
    wrong = [part for part in parts if not (part.isdecimal() and len(part) < 10 and 1 <= int(part) <= most)]
    if wrong or not parts:
        raise ConfigError(f"{option} {shown(text)}: write sizes of 1..{most}, such as {such_as}")
    return tuple(map(int, parts))


def example(command: str) -> str:
    """The last line of a verb's help."""
    return f"Example: [bold]{command}[/]"


TargetOption = Annotated[
    str,
    typer.Option(
        help="Target model: the embedded model's name, a Hugging Face folder or hub id (owner/model), or shape:NAME "
        "for random weights, where NAME is a shipped shape or a config.json.",
        autocompletion=target_names,
    ),
]
DrafterOption = Annotated[
    str | None,
    optional(
        "Draft model: a shipped name, the folder of a training run, any model with the target's tokenizer "
        "(folder or hub id), or none. Default: the one that ships for the target.",
        autocompletion=drafter_names,
    ),
]
ExitsOption = Annotated[
    str | None,
    optional(
        "Exit adapters: a shipped name or a folder. Default: those that ship for the target.",
        autocompletion=drafter_names,
    ),
]
HeadsOption = Annotated[
    str | None,
    optional(
        "Draft heads, streams and prompt lookup: shipped names or folders, separated by commas, or none. "
        "Default: all that ship for the target.",
        autocompletion=drafter_names,
    ),
]
DtypeOption = Annotated[Dtype, typer.Option(help="Type of weights and arithmetic.")]
DeviceOption = Annotated[
    str | None,
    optional(
        "Device that computes, as `mirrorsd devices` names it, such as openvino:NPU, or cpu for torch. Default: "
        "openvino:CPU where it knows the models' architectures."
    ),
]
PromptsOption = Annotated[
    Path | None,
    optional(
        'JSON Lines file of prompts: {"prompt": ...} or Spec-Bench rows; of those that ship `demo` has 48, `pool` '
        "240, and `long` those of 300 to 1,500 tokens."
    ),
]
PerCategoryOption = Annotated[int | None, optional("Take only so many prompts of every kind of task.", min=1)]
MaxNewTokensOption = Annotated[int, typer.Option(min=1, max=1 << 20, help="Most new tokens per prompt.")]
MaxWindowOption = Annotated[int, typer.Option(min=1, max=16, help="Longest draft, in tokens per round.")]
ProfileOption = Annotated[Path, typer.Option(help="Profile that `mirrorsd calibrate` wrote.")]
RecordOption = Annotated[Path, typer.Option(help="Acceptance record that `mirrorsd record` wrote.")]
RecordOrNoneOption = Annotated[
    Path | None, optional("Acceptance record that `mirrorsd record` wrote; --acceptance assumes rates instead.")
]
AcceptanceOption = Annotated[
    str | None,
    optional(
        "Acceptance to assume instead of a record: one rate for every drafted token (0.8), rates by position "
        "(0.8,0.7,0.6), or a YAML file that also covers branches, trees and streams."
    ),
]
ShapeOption = Annotated[
    str,
    typer.Option(
        help="Target model: a shape that ships, by name or hub id (Qwen/Qwen3-8B), or a config.json or its folder.",
        autocompletion=shape_names,
    ),
]
DraftShapeOption = Annotated[str, typer.Option(help="Draft model, named like --target.", autocompletion=shape_names)]
DraftsOption = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="Draft model, named like --target; or [bold]mtp[/], [bold]eagle3[/], [bold]medusa[/], [bold]dflash[/] or "
        "[bold]prompt-lookup[/]. Of several, separated by commas, the fastest is recommended.",
        autocompletion=draft_names,
    ),
]
WeightsOption = Annotated[
    str,
    typer.Option(
        help="How weights are stored: bf16, fp8, int8, int4, nvfp4, awq-int4, mlx-4bit, or a GGUF type such as q4_k_m.",
        autocompletion=weight_names,
    ),
]
EngineOption = Annotated[
    str | None,
    optional(
        "What runs the target on GPUs, such as llama.cpp, 'llama.cpp vulkan', mlx or vllm: speeds are those measured "
        "with it. Default: vllm on data-centre GPUs, else llama.cpp.",
        autocompletion=engine_names,
    ),
]
PlatformOption = Annotated[
    str,
    typer.Option(
        help="Machine: a shipped platform, a platform YAML, or a device (rtx3090, 2xrtx3090, m4-max): a PC with it.",
        autocompletion=platform_names,
    ),
]


def names(text: str) -> list[str]:
    """Return the names of a list with commas, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


PlatformOrNoneOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Platform: a shipped name, a device ([bold]rtx4090[/], [bold]2xrtx3090[/]) or a platform YAML. Several, "
        "separated by commas, are compared. Or give a --profile.",
        autocompletion=platform_names,
    ),
]
ReplayedOption = Annotated[
    bool,
    typer.Option(
        "--replayed-acceptance",
        help="Accept a record of other models than the profile's, such as a smaller pair's; the result says so.",
    ),
]
ExplainOption = Annotated[
    bool, typer.Option("--explain", help="Also say how sure the answer is, what it rests on and what would change it.")
]
ScheduleOption = Annotated[Path, typer.Option(help="Schedule YAML, such as `mirrorsd search` writes.")]


class ModelNames(NamedTuple):
    """The models that the options of a verb name."""

    target: str = DEFAULT_TARGET
    drafter: str | None = None
    exits: str | None = None
    heads: str | None = None
    dtype: Dtype = Dtype.BFLOAT16

    def find(self, progress: ReportProgress) -> ModelPair:
        """Their folders."""
        from mirrorsd.model_pair import find_pair

        return find_pair(
            self.target,
            drafter=self.drafter,
            exits=self.exits,
            heads=chosen_heads(self.heads),
            dtype=self.dtype.value,
            progress=progress,
        )

    @property
    def words(self) -> tuple[str, ...]:
        """The options that name them on a command line, defaults left out."""
        defaults = ModelNames()._asdict()
        given = {name: value for name, value in self._asdict().items() if value not in (None, defaults[name])}
        return tuple(word for name, value in given.items() for word in (f"--{name}", str(value)))


def reach_words(prompts: Path | None, max_new_tokens: int, max_window: int) -> tuple[str, ...]:
    """The options that make a calibration and a record reach equally far, defaults left out."""
    given = {
        "--prompts": prompts,
        "--max-new-tokens": None if max_new_tokens == MAX_NEW_TOKENS else max_new_tokens,
        "--max-window": None if max_window == MAX_WINDOW else max_window,
    }
    return tuple(word for name, value in given.items() if value is not None for word in (name, str(value)))


def models_of(record: AcceptanceRecord, exits: str | None = None) -> ModelNames:
    """What names on a command line of `mirrorsd run` the models that were recorded; drafters are in schedules."""
    return ModelNames(record.target, exits=exits, dtype=Dtype(record.dtype))


def chosen_acceptance(record: Path | None, acceptance: str | None, profile: Profile) -> AcceptanceRecord:
    """What `--record` or `--acceptance`, one of the two, means; assumed texts are in contexts of the profile."""
    from decoding.errors import ConfigError
    from decoding.record import AcceptanceRecord

    if (record is None) == (acceptance is None):
        raise ConfigError("give a --record, or what to assume in its place (--acceptance), and not both")
    if record is not None:
        return AcceptanceRecord.load(record)
    from sim.acceptance.assumed import parse_acceptance
    from sim.acceptance.rates import Texts

    return parse_acceptance(str(acceptance), texts=Texts().within(profile)).record


def chosen_heads(text: str | None) -> tuple[str, ...] | None:
    """The names that `--heads` lists; None for all that ship."""
    if text is None:
        return None
    return () if text == "none" else tuple(filter(None, (name.strip() for name in text.split(","))))


def chosen_prompts(
    path: Path | None, per_category: int | None = None, *, usual: PromptSet = "demo"
) -> tuple[Prompt, ...]:
    """The prompts that `--prompts` and `--per-category` ask for; without, a set that ships."""
    from calibrate.prompts import PROMPT_SETS, bundled_prompts, load_prompts, take_per_category

    if path is None:
        prompts = bundled_prompts(usual)
    else:
        shipped = next((name for name in PROMPT_SETS if name == str(path) and not path.exists()), None)
        prompts = load_prompts(path) if shipped is None else bundled_prompts(shipped)
    return prompts if per_category is None else take_per_category(prompts, per_category)
