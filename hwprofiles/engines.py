"""Engines: what further rows cost by the program that runs a model, where somebody measured it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TypeVar

from pydantic import RootModel

from decoding.errors import ConfigError, unknown
from decoding.yaml_file import load_yaml
from hwprofiles.platform import Platform
from hwprofiles.sheets import DeviceSheet, GrowthsPerRow
from hwprofiles.weights.formats import WeightFormat, stored_weights

_FILE = Path(__file__).with_name("engines.yaml")
Sheet = TypeVar("Sheet", bound=DeviceSheet)


class _Engines(RootModel[dict[str, dict[WeightFormat, GrowthsPerRow]]]):
    """Growth by rows on GPUs, by engine and weights."""


@cache
def engines() -> dict[str, dict[WeightFormat, GrowthsPerRow]]:
    """Return what is known of every engine: the growth by rows on GPUs, by weights."""
    return load_yaml(_FILE, _Engines).root


def run_by(sheet: Sheet, engine: str, weights: WeightFormat) -> Sheet:
    """Return the sheet of a device on which an engine runs; of other devices than GPUs nothing is known of it.

    A growth of its own that was measured with that engine stands, and so does a kernel law with vLLM, whose kernels it
    is of. Weights that were not measured take what their plain type was measured to (`StoredWeights.like`).

    Raises:
        ConfigError: no engine is called so, or nobody measured it with such weights; lists what there is.
    """
    if engine not in engines():
        raise ConfigError(unknown("engine", engine, engines()))
    known = engines()[engine]
    alike = next((name for name in (weights, stored_weights(weights).like) if name in known), None)
    if alike is None:
        raise ConfigError(f"nobody measured what rows of {engine} cost in {weights}; there is {', '.join(known)}")
    own = sheet.growth_per_row
    is_own = own is not None and engine in (own.by or "")
    if sheet.kind != "gpu" or is_own or (engine == "vllm" and sheet.kernel_start_s is not None):
        return sheet
    return sheet.model_copy(update={"growth_per_row": known[alike], "kernel_start_s": None, "unhidden_share": None})


def platform_run_by(platform: Platform, engine: str, weights: WeightFormat) -> Platform:
    """Return the platform with an engine on all of its GPUs; errors as in `run_by`."""
    devices = {name: run_by(device, engine, weights) for name, device in platform.devices.items()}
    return platform.model_copy(update={"devices": devices})
