"""Options that several verbs share, with their checks and shell completion; nothing here loads a model."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final

import typer

DEFAULT_TARGET: Final = "smollm2-135m-instruct"
MOST_MINUTES: Final = 24 * 60
MAX_NEW_TOKENS, MAX_WINDOW = 64, 8
"""Default limits of calibrations and records: new tokens per prompt, and drafted tokens per round."""
STDOUT: Final = "-"


class Dtype(StrEnum):
    """Formats of weights that lanes compute with."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    INT4 = "int4"


def option(what: str, *names: str, **settings: Any) -> Any:
    """Return an option whose help is `what`; `names` replace the parameter's own, `settings` are Typer's."""
    if "min" in settings:
        settings.setdefault("metavar", "N")  # Typer's default, the type and its range, would take much room
    return typer.Option(*names, help=what, **settings)


def output(what: str, *, kind: str) -> Any:
    """Return an option for an output file; `kind` is a key of `SUFFIXES`. An unwritable file is refused at once."""
    return typer.Option(help=what, callback=_OF_KIND[kind])


def page(what: str = "Write a page (HTML) here.") -> Any:
    """Return an option for an HTML page to write."""
    return output(what, kind="HTML")


def output_folder(what: str, *names: str) -> Any:
    """Return an option for a folder to write files into; an unwritable one is refused at once."""
    return typer.Option(*names, help=what, callback=folder_that_can_be_written)


def file_that_can_be_written(path: Path | None) -> Path | None:
    """Return the option's file; raises `ConfigError` if it cannot be written."""
    from decoding.files import require_writable

    if path is not None:
        require_writable(path)
    return path


def require_kind(path: Path, kind: str) -> None:
    """Raise `ConfigError` for a file name with the ending of another kind; unknown endings are parts of the name."""
    from decoding.errors import ConfigError

    ending = path.suffix.lower()
    is_named_by_kind = not {one.lower() for one in path.suffixes}.isdisjoint(chain(*SUFFIXES.values()))
    if is_named_by_kind and ending[1:].isalpha() and ending not in SUFFIXES[kind]:
        better = f"{_without_endings(path)}{SUFFIXES[kind][0]}"
        raise ConfigError(f"{path}: {kind} would go into this file; name it {better}")


def _without_endings(path: Path) -> Path:
    path = path.with_suffix("")
    return _without_endings(path) if path.suffix.lower() in chain(*SUFFIXES.values()) else path


def _of_kind(kind: str) -> Callable[[Path | None], Path | None]:
    def file_of_its_kind(path: Path | None) -> Path | None:
        if path is not None:
            require_kind(path, kind)
        return file_that_can_be_written(path)

    return file_of_its_kind


def folder_that_can_be_written(path: Path | None) -> Path | None:
    """Return the option's folder; raises `ConfigError` for a file's name, or if no file can be written into it."""
    from decoding.errors import ConfigError

    if path is not None and path.suffix.lower() in chain(*SUFFIXES.values()) and not path.is_dir():
        raise ConfigError(f"{path}: this would be a folder; name it {_without_endings(path)}")
    file_that_can_be_written(None if path is None else path / "file")
    return path


def json_that_can_be_written(destination: str | None) -> str | None:
    """Return the option's file, or `-` for stdout; raises `ConfigError` if the file cannot be written."""
    if destination not in (None, STDOUT):
        _OF_KIND["JSON"](Path(destination))
    return destination


SUFFIXES: Final = {
    "HTML": (".html", ".htm"),
    "JSON": (".json",),
    "JSON Lines": (".jsonl", ".ndjson", ".json", ".txt"),
    "a token file": (".jsonl", ".ndjson", ".json", ".txt", ".gz"),
    "a record": (".npz",),
    "a trace": (".json", ".gz"),
    "SVG": (".svg",),
    "YAML": (".yaml", ".yml"),
}
"""Endings of file names by what is written into the file, the usual one first."""
_OF_KIND: Final = {kind: _of_kind(kind) for kind in SUFFIXES}
OUTPUTS: Final = (folder_that_can_be_written, json_that_can_be_written, *_OF_KIND.values())
"""Callbacks by which options for outputs are recognised."""


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a function that completes a word; `names` is slow, so it is called only on completion."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def _shapes() -> Iterable[str]:
    from hwprofiles.model_shape import shipped_models

    return shipped_models()


def _drafts() -> Iterable[str]:
    from hwprofiles.models.head_shapes import HEADS

    return (*_shapes(), *HEADS)


def _devices(*kinds: str) -> Iterable[str]:
    from hwprofiles.sheets import shipped_names

    return [name for kind in (*kinds, "device") for name in shipped_names(kind)]


def _weights() -> Iterable[str]:
    from hwprofiles.weights.formats import weight_formats

    return weight_formats()


def _engines() -> Iterable[str]:
    from hwprofiles import engines

    return engines.engine_names()


shape_names = completing(_shapes)
device_names = completing(_devices)
platform_names = completing(lambda: _devices("platform"))
target_names = completing(lambda: (DEFAULT_TARGET, *(f"shape:{name}" for name in _shapes())))


def drafter_names(incomplete: str) -> list[str]:
    """Return the shipped drafters that begin with a word, or that complete the last name of a comma-separated list."""
    from runtime.drafters.registry import shipped_names

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in (*shipped_names(), "none") if name.startswith(last)]


JsonOption = Annotated[
    str | None,
    option(
        "Write the result as JSON to PATH; without PATH, or with [bold]-[/], to stdout in place of the text.",
        "--json",
        metavar="[PATH]",
        callback=json_that_can_be_written,
    ),
]
TargetOption = Annotated[
    str,
    option(
        "Target model: the default model's name, a Hugging Face folder or hub id (owner/model), or shape:NAME for "
        "random weights, where NAME is a shipped shape or a config.json.",
        autocompletion=target_names,
    ),
]
DrafterOption = Annotated[
    str | None,
    option(
        "Draft model: a shipped name, the folder of a training run, any model with the target's tokenizer (folder or "
        "hub id), or none. Default: the one that ships for the target. Heads: --heads.",
        autocompletion=drafter_names,
    ),
]
ScheduledDrafterOption = Annotated[
    str | None,
    option(
        "Drafter to use instead of the schedule's, by shipped name or folder: a draft model, a head, streams or prompt "
        "lookup, as the method needs. Default: the schedule's, or else the one that ships for the target.",
        autocompletion=drafter_names,
    ),
]
ExitsOption = Annotated[
    str | None,
    option(
        "Early-exit adapters: a shipped name or a folder. Default: those that ship for the target.",
        autocompletion=drafter_names,
    ),
]
HeadsOption = Annotated[
    str | None,
    option(
        "What drafts besides the draft model (heads, streams, prompt lookup): shipped names or folders, separated by "
        "commas, or none. Default: all that ship for the target.",
        autocompletion=drafter_names,
    ),
]
DtypeOption = Annotated[Dtype, option("Type of weights.")]
DeviceOption = Annotated[
    str | None,
    option(
        "Device to compute on, as `mirrorsd devices` names it, such as openvino:NPU, or cpu for torch. Default: "
        "openvino:CPU where it supports the models' architectures."
    ),
]
LanesOption = Annotated[
    str | None,
    option("Lanes to use, such as openvino:CPU@0,openvino:CPU@1 or cuda:0,cpu0. Default: all of one device."),
]
PromptsOption = Annotated[
    Path | None,
    option(
        'JSON Lines file of prompts: {"prompt": ...} or Spec-Bench rows. Or a set that ships: '
        "`demo` (48; the default of calibrate and record), "
        "`pool` (240; the default of demo and validate), or `long` (300 to 1,500 tokens each)."
    ),
]
PerCategoryOption = Annotated[int | None, option("Limit of prompts per kind of task.", min=1)]
MaxNewTokensOption = Annotated[int, option("Limit of new tokens per prompt.", min=1, max=1 << 20)]
MaxWindowOption = Annotated[int, option("Longest draft, in tokens per round.", min=1, max=16)]
ProfileOption = Annotated[Path, option("Profile that `mirrorsd calibrate` wrote.")]
RecordOption = Annotated[Path, option("Acceptance record that `mirrorsd record` wrote.")]
RecordOrNoneOption = Annotated[
    Path | None, option("Acceptance record that `mirrorsd record` wrote; --acceptance assumes rates instead.")
]
AcceptanceOption = Annotated[
    str | None,
    option(
        "Acceptance to assume instead of a record: one rate for every drafted token (0.8), rates by position "
        "(0.8,0.7,0.6), or a YAML file that also covers branches, trees and streams."
    ),
]
ShapeOption = Annotated[
    str,
    option(
        "Target model: a shape that ships, by name or hub id (Qwen/Qwen3-8B), or a config.json or its folder.",
        autocompletion=shape_names,
    ),
]
DraftsOption = Annotated[
    str,
    option(
        "Draft model, named like --target; or [bold]mtp[/], [bold]eagle3[/], [bold]medusa[/], [bold]dflash[/] or "
        "[bold]prompt-lookup[/]. Of several, separated by commas, the fastest is recommended.",
        metavar="NAMES",
        autocompletion=completing(_drafts),
    ),
]
FORMATS: Final = "bf16, fp8, int8, int4, nvfp4, awq-int4, mlx-4bit, or a GGUF type such as q4_k_m"
weights_option = {"autocompletion": completing(_weights)}
WeightsOption = Annotated[
    str | None,
    option(
        f"How weights are stored: {FORMATS}. Default: the format in the target's name, or else the published one, "
        "mostly bf16.",
        **weights_option,
    ),
]
EngineOption = Annotated[
    str | None,
    option(
        "Engine of the target on GPUs, such as llama.cpp, 'llama.cpp vulkan', mlx or vllm: its measured speeds are "
        "used. Default: what the weights are made for (GGUF: llama.cpp; AWQ, FP8: vllm), else vllm on data-centre GPUs "
        "and llama.cpp on others.",
        autocompletion=completing(_engines),
    ),
]
PlatformOrNoneOption = Annotated[
    str | None,
    option(
        "Machine: a shipped platform, a device ([bold]rtx4090[/], [bold]2xrtx3090[/]) or a platform YAML. Several "
        "machines, separated by commas, are compared. Alternatively, give a --profile.",
        metavar="NAMES",
        autocompletion=platform_names,
    ),
]
ReplayedOption = Annotated[
    bool,
    option("Allow a record of other models, such as a smaller pair's; the result says so.", "--replayed-acceptance"),
]
ExplainOption = Annotated[
    bool, option("Also say how sure the answer is, what it is based on and what would change it.", "--explain")
]
ScheduleOption = Annotated[Path, option("Schedule YAML, such as `mirrorsd search` writes.")]
