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
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from decoding.errors import LaneError
from runtime.backends.openvino.constants import Form
from runtime.backends.openvino.graph import GRAPH_VERSION
from runtime.backends.openvino.library import ov
from runtime.models.embedded import models_folder

_MOST_BYTES: Final = 20_000_000_000
"""Of all compiled graphs on disk; beyond it those that were not used for longest go."""
_SUFFIX: Final = ".blob"


def compiled_folder() -> Path:
    """Where compiled graphs are kept; it need not exist."""
    return models_folder().parent / "compiled"


class Compiler:
    """Compiles for one device, with so many threads."""

    def __init__(self, device: str, form: Form, num_threads: int) -> None:
        self.device, self.form = device, form
        self._settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32" if form == "float32" else "bf16"}
        if device == "CPU":
            self._settings |= {"INFERENCE_NUM_THREADS": num_threads, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
            # code made for a whole attention block rounds otherwise by how many layers its graph has: where few query
            # heads share a key, a segment that is cut in two was not the same to the last bit
            self._settings["SNIPPETS_MODE"] = "DISABLE"
        if form == "int8":
            # rows are rounded to int8 in groups: faster, and alike at every number of rows (`row_floor`)
            self._settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 32

    @cached_property
    def _core(self) -> ov.Core:
        return ov.Core()

    @cached_property
    def _identity(self) -> Mapping[str, Any]:
        """What decides about a compiled graph besides the graph."""
        return {
            "openvino": ov.get_version(),
            "device": [self.device, self._core.get_property(self.device, "FULL_DEVICE_NAME")],
            "capabilities": sorted(self._core.get_property(self.device, "OPTIMIZATION_CAPABILITIES")),
            "settings": self._settings,
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
        try:
            made = self._core.compile_model(build(), self.device, self._settings)
        except RuntimeError as error:
            raise LaneError(f"OpenVINO's {self.device} refuses a graph of {self.form} weights: {error}") from error
        with suppress(OSError):  # a full or read-only disk costs time, nothing else
            _write(path, made.export_model().getbuffer())
        return made

    def _read(self, path: Path) -> ov.CompiledModel | None:
        try:
            content = path.read_bytes()
            os.utime(path)
            return self._core.import_model(content, self.device, self._settings)
        except (OSError, RuntimeError):
            return None


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
