"""Inference engines: which one runs on a device, which weights it loads, and what public curves tell of its speed.

An engine may be named with its back end or version: `llama.cpp`, `llama.cpp vulkan`, `vllm 0.27`.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final, NamedTuple, TypeVar

from decoding.errors import ConfigError, unknown
from hwprofiles.curves.names import engine_of, family_of, is_of_data_centre
from hwprofiles.curves.row_curves import read_curves
from hwprofiles.curves.row_prices import Asked, Reading, RowPrices, reading, row_prices
from hwprofiles.model_shape import ModelShape
from hwprofiles.platform import Platform
from hwprofiles.sheets import DeviceSheet
from hwprofiles.weights.formats import stored_weights, weights_in_name, weights_named, weights_of_mlx, weights_told

_Sheet = TypeVar("_Sheet", bound=DeviceSheet)
LAW_ENGINE: Final = "vllm"
"""The engine whose kernels were measured for the kernel laws of data sheets."""
_LAW_WEIGHTS: Final = "sixteen"
"""The `hwprofiles.curves.names.weights_class` that the kernel laws were measured with."""
EAGER: Final = "transformers"
"""Stands for all uncompiled PyTorch code: Python starts every operation."""
ANYWHERE: Final = "llama.cpp"
"""The engine that runs on every GPU of a known architecture."""
_APART: Final = ("AWS", "Google", "Habana", "Tenstorrent")
"""Makers of accelerators for which neither llama.cpp nor OpenVINO has a back end."""
_IN_LLAMA_CPP: Final = {"mxfp4": "mxfp4_moe", "mxfp4-fp8": "mxfp4_moe", "int4-experts": "q4_x"}
"""Formats of llama.cpp's files of gpt-oss, DeepSeek V4 and Kimi, by the published format: Q8_0 replaces what is beside
experts."""
_FILES_OF: Final[Mapping[str, Mapping[str, str]]] = {
    "mlx": {
        "mxfp4": "mlx-mxfp4",
        "mxfp4-fp8": "mlx-mxfp4",
        "int4": "mlx-4bit",
        "int4-experts": "mlx-4bit",
        "int8": "mlx-8bit",
    },
    ANYWHERE: _IN_LLAMA_CPP,
    "ds4": _IN_LLAMA_CPP,
}
"""The format that a published format becomes in an engine's own files, by engine: they quantise other parts too."""
IK: Final = "ik_llama.cpp"
"""A fork of llama.cpp that loads the same files with different kernels."""
READS_AGAIN: Final = (ANYWHERE,)
"""Engines whose draft model computes every verified row once more: `process` of llama.cpp's `draft-simple` and
`draft-mtp` (common/speculative.cpp)."""
_MAKERS: Final[Mapping[str, tuple[str, ...]]] = {
    "cuda": ("NVIDIA",), "rocm": ("AMD",), "hip": ("AMD",), "metal": ("Apple",), "mlx": ("Apple", "NVIDIA"),
}  # fmt: skip
"""Makers of the GPUs that a back end runs on; other back ends run on all. MLX has Metal and CUDA."""
_PLAIN_BITS: Final = 16
_CACHE_SCALE_BITS: Final = 16 / 32
_MADE_FOR: Final = {
    ANYWHERE: re.compile(r"(i?q|tq)\d|mxfp4_moe"),
    "mlx": re.compile("mlx-"),
    LAW_ENGINE: re.compile("awq|gptq|w8a|fp8|int4-experts"),
}
"""Weight formats that exist only in one engine's files, by that engine."""
_KEEPS_16_BITS: Final = "ollama"
"""Runs llama.cpp's kernels, but its files of gpt-oss keep the published 16 bits of all weights beside experts."""
_READ_BY: Final = {ANYWHERE: (ANYWHERE, IK), "mlx": ("mlx",), LAW_ENGINE: (LAW_ENGINE, EAGER)}
"""Engines that load the formats of `_MADE_FOR`: transformers has quantizers for AWQ, GPTQ, FP8 and W8A8."""
_OF_SERVERS: Final = ("mxfp4", "mxfp4-fp8", "nvfp4", "nvfp4a16")
"""Further formats that checkpoints for servers (vLLM, SGLang) have."""
_PUBLISHED_APART: Final = ("eagle", "eagle3", "dflash", "medusa")
"""Heads that are published as checkpoints of their own; MTP layers are in their target's checkpoint."""


class CurvePrices(NamedTuple):
    """What an engine's public curves tell: the cost of further rows, and the reading of weights; None if unknown.

    `is_mixture`: the curves are of mixtures of experts (the kernel laws of data sheets are of dense models).
    """

    engine: str
    rows: RowPrices | None
    reading: Reading | None
    is_mixture: bool = False


def engine_names() -> tuple[str, ...]:
    """Return the names of all engines that can be predicted: those with public curves, and `EAGER`."""
    known = (engine_of(one.engine) for one in read_curves())
    return tuple(sorted({EAGER, *filter(None, known)}))


def default_engine(sheet: DeviceSheet, weights: str | None = None) -> str | None:
    """Return the default engine of a GPU for a weight format; None if there are no curves of its architecture.

    It is the engine that the format is made for, if that is llama.cpp (with or without curves) or was measured on the
    architecture; else vLLM on data-centre GPUs, and llama.cpp on all others.
    """
    family = family_of(sheet.chip)
    made_for = made_for_engine(weights) if weights else None
    if made_for == ANYWHERE and sheet.maker not in _APART:
        return made_for
    if family is None:
        return None
    if any(made_for == one.engine and family == one.family for one in read_curves()):
        return made_for
    return LAW_ENGINE if is_of_data_centre(sheet.chip) else ANYWHERE


def weights_for(engine: str, told: str | None, model: str | None = None, published_in: str = "bf16") -> str | None:
    """Return the weight format in an engine's files that `told` or else the model's name means; None if neither does.

    Raises as `weights_told`.
    """
    text = told or (model or "").rpartition("/")[2]
    engine = (engine_of(engine) or engine).removeprefix("ik_")
    if engine == "mlx" and (mlx_format := weights_of_mlx(text.lower())) is not None:
        return mlx_format
    if told:
        named: str | None = weights_told(told)
    else:
        named = weights_in_name(model, published_in) if model else None
    return _FILES_OF.get(engine, {}).get(named, named) if named else None


def made_for_engine(weights: str) -> str | None:
    """Return the only engine whose files have a weight format; None if several engines read it."""
    return next((engine for engine, names in _MADE_FOR.items() if names.match(weights_named(weights))), None)


def reads(engine: str, weights: str) -> bool:
    """Return whether an engine loads weights of that format."""
    made_for = made_for_engine(weights)
    return made_for is None or engine_of(engine) in _READ_BY[made_for]


def require_reading(devices: Iterable[DeviceSheet], weights: str, option: str = "--weights") -> None:
    """Raise `ConfigError`, which says what else to give, if the engine named for a GPU cannot load the weights."""
    for sheet in devices:
        if sheet.kind == "gpu" and sheet.engine is not None and not reads(sheet.engine, weights):
            named = f"{' or '.join(loaders)} as the engine, or " if (loaders := loaders_on(sheet, weights)) else ""
            raise ConfigError(
                f"engine {sheet.engine!r} does not load {weights}: give {named}{option} bf16, int8 or int4, of which "
                "every engine has its own"
            )


def head_weights(head: str, shape: ModelShape, weights: str) -> str:
    """Return the default weight format of a target's draft head: `weights`, or bf16 beside a server's checkpoint.

    bf16 is for heads that are published apart, which includes an MTP head with its own `lm_head`: it is a small model.
    """
    is_of_servers = made_for_engine(weights) == LAW_ENGINE or weights in _OF_SERVERS
    is_apart = head in _PUBLISHED_APART or (head == "mtp" and not shape.borrows_lm_head)
    return "bf16" if is_apart and is_of_servers else weights


def engine_on(sheet: DeviceSheet, weights: str | None = None) -> str | None:
    """Return the engine on a device: its sheet's, else a GPU's default for the weights; None if there is none."""
    return sheet.engine or (default_engine(sheet, weights) if sheet.kind == "gpu" else None)


def published_for(target: ModelShape, devices: Iterable[DeviceSheet]) -> str:
    """Return the default format of a target's weights: the published one, as llama.cpp's files store it if that runs.

    llama.cpp is assumed on CPUs and on GPUs on which no engine was measured; NPUs beside a chip's CPU are ignored.
    """
    able = [one for one in devices if one.kind != "npu" or one.memory_pool is None]
    in_llama_cpp = able and all(map(_has_llama_cpp, able))
    return _IN_LLAMA_CPP.get(target.published_in, target.published_in) if in_llama_cpp else target.published_in


def _has_llama_cpp(sheet: DeviceSheet) -> bool:
    """Return whether a device's models are llama.cpp's files, as for its fork and most programs that wrap it."""
    if sheet.kind != "gpu":
        return sheet.kind == "cpu"
    engine = engine_on(sheet) or ANYWHERE
    is_own = _KEEPS_16_BITS in engine.lower()
    return engine_of(engine) in _READ_BY[ANYWHERE] and not is_own and not is_apart(sheet)


def splits_layers(sheet: DeviceSheet, weights: str) -> bool:
    """Return whether the engine on a device can put some layers there and others elsewhere (llama.cpp's `-ngl`)."""
    return engine_of(engine_on(sheet, weights) or "") == ANYWHERE and not is_apart(sheet)


def is_apart(sheet: DeviceSheet) -> bool:
    """Return whether a device is an accelerator that neither llama.cpp nor OpenVINO runs on."""
    return sheet.kind != "cpu" and sheet.maker in _APART


def engine_of_cpus(platform: Platform, weights: str | None = None) -> str | None:
    """Return the engine on a platform's CPUs; None for the runtime of `mirrorsd run`.

    It is llama.cpp (or the engine that the weights are made for) if llama.cpp runs on the GPUs, or if there are neither
    GPUs nor lanes of `mirrorsd run`.
    """
    on_gpus = {engine_of(engine_on(one, weights) or "") for one in platform.devices.values() if one.kind == "gpu"}
    is_anywhere = ANYWHERE in on_gpus or not (on_gpus or platform.lanes)
    return (weights and made_for_engine(weights)) or ANYWHERE if is_anywhere else None


def run_by(sheet: _Sheet, engine: str) -> _Sheet:
    """Return a GPU's sheet with its engine set; sheets of other devices stay as they are.

    Raises:
        ConfigError: the engine is unknown (lists the valid ones), or does not run on that GPU.
    """
    if engine_of(engine) not in engine_names():
        raise ConfigError(unknown("engine", engine, engine_names()))
    if sheet.kind != "gpu":
        return sheet
    if (reason := _refusal(sheet, engine)) is not None:
        raise ConfigError(f"engine {engine!r}: {reason}, not on {sheet.name}")
    return sheet.model_copy(update={"engine": engine})


def can_run(sheet: DeviceSheet, engine: str) -> bool:
    """Return whether an engine, with the back end in its name if any, runs on a GPU."""
    return _refusal(sheet, engine) is None


def _refusal(sheet: DeviceSheet, engine: str) -> str | None:
    """Say on which GPUs an engine or its back end runs, if not on this one; None if it does."""
    backend = next((one for one in _MAKERS if one in engine.lower()), None)
    if backend is not None and sheet.maker is not None and sheet.maker not in (makers := _MAKERS[backend]):
        return f"{backend} runs on GPUs of {' and '.join(makers)}"
    if engine_of(engine) in _READ_BY[ANYWHERE] and is_apart(sheet):
        return f"{engine} runs on GPUs and CPUs"
    return f"{engine} runs on GPUs from Volta on" if engine_of(engine) == LAW_ENGINE and sheet.before_volta else None


def has_servers(sheet: DeviceSheet) -> bool:
    """Return whether vLLM and SGLang are made for a GPU: one of NVIDIA, or an Instinct of AMD."""
    return sheet.maker == "NVIDIA" or (sheet.maker == "AMD" and sheet.chip.startswith("mi"))


def loaders_on(sheet: DeviceSheet, weights: str) -> list[str]:
    """Return the engines that load weights made for one engine and that run on a GPU."""
    made_for = made_for_engine(weights)
    return [one for one in _READ_BY.get(made_for or "", ()) if can_run(sheet, one)]


def platform_run_by(platform: Platform, engine: str) -> Platform:
    """Return the platform with an engine on all of its GPUs; raises as `run_by`."""
    devices = {name: run_by(device, engine) for name, device in platform.devices.items()}
    return platform.model_copy(update={"devices": devices})


def cache_scale_bits(sheets: Iterable[DeviceSheet], weights: str, cache_bits: int) -> float:
    """Return the bits of scales per element of a quantised KV cache, by the engine on a machine's GPUs.

    llama.cpp (`q8_0`, `q4_0`) has a 16-bit scale per 32 elements, and MLX as much; vLLM's fp8 and 16-bit caches have
    none.
    """
    engines = {engine_of(engine_on(sheet, weights) or "") for sheet in sheets if sheet.kind == "gpu"}
    return 0.0 if cache_bits >= _PLAIN_BITS or LAW_ENGINE in engines else _CACHE_SCALE_BITS


def has_law(sheet: DeviceSheet, weights: str | None = None) -> bool:
    """Return whether a device has a measured kernel law that holds for its engine."""
    return sheet.kernel_start_s is not None and engine_of(engine_on(sheet, weights) or LAW_ENGINE) == LAW_ENGINE


def stands_for(engine: str) -> str | None:
    """Say that vLLM's times stand for an engine that nobody measured; None for measured engines."""
    is_measured = engine_of(engine) != LAW_ENGINE or LAW_ENGINE in engine.lower()
    return None if is_measured else f"Times are vLLM's: {engine} was not measured."


def is_eager(sheet: DeviceSheet) -> bool:
    """Return whether a GPU's engine starts every operation from Python (`EAGER`)."""
    return sheet.kind == "gpu" and engine_of(sheet.engine or "") == EAGER


def priced(sheet: DeviceSheet, shape: ModelShape, weights: str) -> CurvePrices | None:
    """Return what public curves tell of a model on a device; None without an engine, or if a kernel law replaces them.

    A kernel law replaces curves for dense models: three mixtures of experts by vLLM on A100 and H100 took 1.5 to 2.2
    times what the law says. But if the weights are not those of the law, the rows of a curve of this very device win
    and the law tells the reading only. Mixtures on a GPU without a measured engine are priced as llama.cpp's.
    """
    engine, is_mixture = engine_on(sheet, weights), shape.num_experts > 0
    if engine is None and is_mixture and sheet.kind == "gpu" and not is_apart(sheet):
        engine = ANYWHERE
    if engine is None or is_eager(sheet):
        return None
    billions = shape.pass_bytes(weights) * 8 / stored_weights(weights).bits / 1e9
    asked = Asked.of(sheet, engine, weights, billions, is_mixture=is_mixture)
    if has_law(sheet, weights) and not is_mixture:
        rows = None if asked.weights == _LAW_WEIGHTS else _row_prices(asked)
        return CurvePrices(engine, rows, None) if rows is not None and rows.step == "device" else None
    return CurvePrices(engine, _row_prices(asked), _reading(asked), is_mixture)


_row_prices, _reading = cache(row_prices), cache(reading)
