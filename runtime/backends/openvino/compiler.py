"""Compiling graphs once: what was compiled is kept on disk, by all that decides what it computes.

A file is written whole or not at all. One that cannot be read, from a crash or another machine, is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from decoding.errors import LaneError
from runtime.backends.openvino.compile_apart import compiled_apart
from runtime.backends.openvino.constants import Form
from runtime.backends.openvino.graph import GRAPH_VERSION
from runtime.backends.openvino.library import ov
from runtime.backends.openvino.limits import limits_of
from runtime.backends.openvino.settings import settings_of
from runtime.models.embedded import models_folder

_MOST_BYTES: Final = 20_000_000_000
"""Of all compiled graphs on disk; beyond it those that were not used for longest go."""
_SUFFIX: Final = ".blob"
_HARDWARE: Final = ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")


def compiled_folder() -> Path:
    """Where compiled graphs are kept; it need not exist."""
    return models_folder().parent / "compiled"


class Compiler:
    """Compiles for one device, with so many threads."""

    def __init__(self, device: str, form: Form, num_threads: int) -> None:
        self.device, self.form = device, form
        self._settings = settings_of(device, form, num_threads)
        self._limits = limits_of(device)

    @cached_property
    def _core(self) -> ov.Core:
        return self._settings.new_core()

    @cached_property
    def _identity(self) -> Mapping[str, Any]:
        """What decides about a compiled graph besides the graph."""
        computing = "CPU" if self._settings.cpu else self.device
        return {
            "openvino": ov.get_version(),
            "device": self.device,
            "hardware": [self._core.get_property(computing, name) for name in _HARDWARE],
            "settings": asdict(self._settings),
            "form": self.form,
            "graph_version": GRAPH_VERSION,
        }

    def compiled(self, key: Mapping[str, Any], build: Callable[[], ov.Model]) -> ov.CompiledModel:
        """The graph that `build` makes, compiled; `key` has to tell it from every other.

        Raises:
            LaneError: the device refuses it.
        """
        text = json.dumps({**self._identity, **key}, sort_keys=True, default=str)
        path = compiled_folder() / (hashlib.sha256(text.encode()).hexdigest()[:32] + _SUFFIX)
        if (found := self._read(path)) is not None:
            return found
        if self._limits.compiles_apart:
            made, content = self._made_apart(build())
        else:
            made, content = self._made(build)
        with suppress(OSError):  # a full or read-only disk costs time, nothing else
            _write(path, content)
        return made

    def _made(self, build: Callable[[], ov.Model]) -> tuple[ov.CompiledModel, memoryview]:
        try:
            made = self._core.compile_model(build(), self.device, self._settings.graph)
        except RuntimeError as error:
            raise LaneError(f"OpenVINO's {self.device} refuses a graph of {self.form} weights: {error}") from error
        return made, made.export_model().getbuffer()

    def _made_apart(self, model: ov.Model) -> tuple[ov.CompiledModel, memoryview]:
        content = compiled_apart(model, self.device, self._settings)
        try:
            return self._imported(content), memoryview(content)
        except RuntimeError as error:
            name = model.get_friendly_name()
            raise LaneError(f"OpenVINO's {self.device} cannot read what it compiled, {name}: {error}") from error

    def _read(self, path: Path) -> ov.CompiledModel | None:
        try:
            content = path.read_bytes()
            os.utime(path)
            return self._imported(content)
        except (OSError, RuntimeError):
            return None

    def _imported(self, content: bytes) -> ov.CompiledModel:
        return self._core.import_model(content, self.device, self._settings.graph)


def _write(path: Path, content: memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _make_room(path.parent, content.nbytes)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
        except OSError:
            Path(file.name).unlink()
            raise
    Path(file.name).replace(path)


def _make_room(folder: Path, num_bytes: int) -> None:
    files = sorted(((file.stat(), file) for file in folder.glob(f"*{_SUFFIX}")), key=lambda one: one[0].st_mtime)
    total = num_bytes + sum(stat.st_size for stat, _ in files)
    for stat, file in files:
        if total <= _MOST_BYTES:
            return
        file.unlink(missing_ok=True)
        total -= stat.st_size
