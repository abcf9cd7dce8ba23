"""Compiling graphs; where that takes long, the result is kept on disk, and made again if it cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from decoding.errors import LaneError
from runtime.backends.lane_device import Device, Dtype
from runtime.backends.openvino.compile_apart import compiled_apart, settings_of
from runtime.backends.openvino.graphs.graph import GRAPH_VERSION
from runtime.backends.openvino.library import ov
from runtime.backends.openvino.weights.kept_files import mapped, path_of, write

Compiled = NDArray[np.uint8]
"""The bytes of a graph that was compiled."""

_HARDWARE: Final = ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")


class Compiler:
    """Compiles for one device, with so many threads."""

    def __init__(self, device: Device, form: Dtype, num_threads: int) -> None:
        self.device, self.form = device.own_name, form
        self._settings = settings_of(device, form, num_threads)
        self._compiles_apart = device.is_npu

    @cached_property
    def _core(self) -> ov.Core:
        return self._settings.new_core()

    @cached_property
    def _identity(self) -> Mapping[str, Any]:
        computing = "CPU" if self._settings.cpu else self.device
        return {
            "openvino": ov.get_version(),
            "device": self.device,
            "hardware": [self._core.get_property(computing, name) for name in _HARDWARE],
            "settings": asdict(self._settings),
            "form": self.form,
            "graph_version": GRAPH_VERSION,
        }

    def compiled(self, model: ov.Model) -> ov.CompiledModel:
        """Return a graph compiled in this process and kept nowhere; raise `LaneError` if the device refuses it."""
        try:
            return self._core.compile_model(model, self.device, self._settings.graph)
        except RuntimeError as error:
            raise LaneError(f"OpenVINO's {self.device} refuses a graph of {self.form} weights: {error}") from error

    def copy(self, compiled: Compiled) -> ov.CompiledModel:
        """A graph that was compiled here once more; it reads what it was made of as long as it lives."""
        return self._core.import_model(ov.Tensor(compiled, shared_memory=True), self.device, self._settings.graph)

    def kept(self, key: Mapping[str, Any], build: Callable[[], ov.Model]) -> ov.CompiledModel:
        """Return the compiled graph of `build`, from disk if `key` is known; raise `LaneError` if it is refused."""
        path = path_of(json.dumps({**self._identity, **key}, sort_keys=True, default=str), ".blob")
        with suppress(OSError, RuntimeError):
            return self._imported(mapped(path))
        model = build()
        if self._compiles_apart:
            content = np.frombuffer(compiled_apart(model, self.device, self._settings), np.uint8)
            try:
                made = self._imported(content)
            except RuntimeError as error:
                name = model.get_friendly_name()
                raise LaneError(f"OpenVINO's {self.device} cannot read what it compiled, {name}: {error}") from error
        else:
            made = self.compiled(model)
            content = np.frombuffer(made.export_model().getbuffer(), np.uint8)
        with suppress(OSError):  # a full or read-only disk costs time, nothing else
            write(path, content.data)
        return made

    def _imported(self, content: Compiled) -> ov.CompiledModel:
        return self._core.import_model(content.tobytes(), self.device, self._settings.graph)
