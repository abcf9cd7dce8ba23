"""Compiles graphs; the result is kept on disk where compiling takes long, and made again if it cannot be read.

`compiled_apart` runs this module as a program, so that a crash of the compiler does not end a lane. It also runs a
graph once, as some fail only then. For an NPU, OpenVINO may not partition a graph: a head did not compile then
(2026.4). Where the CPU computes for the NPU, float32 is set as its default, as a graph read from disk has lost its
settings.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from decoding.errors import LaneError
from runtime.arrays import BFLOAT16, FLOAT32
from runtime.backends.lane_device import Device, Dtype, npu_is_on_cpu
from runtime.backends.openvino.buckets import cpu_computes_bfloat16
from runtime.backends.openvino.disk_cache import mapped, path_of, write
from runtime.backends.openvino.graph import ANY, GRAPH_VERSION, Constants, X, head_graph
from runtime.backends.openvino.library import Node, new_core, ov
from runtime.backends.openvino.packing import PackedMatrix
from runtime.instruction_set import has_vnni
from runtime.worker.process import ends_with


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of a device's graphs, and defaults of the CPU where it computes for an NPU."""

    graph: dict[str, Any]
    cpu: dict[str, Any] = field(default_factory=dict)

    def new_core(self) -> ov.Core:
        """Return an OpenVINO core with the defaults set."""
        core = new_core()
        if self.cpu:
            core.set_property("CPU", self.cpu)
        return core


def settings_of(device: Device, form: str, num_threads: int) -> Settings:
    """Return the settings for graphs of a weight format on a device."""
    if device.is_npu:
        return _npu_settings(num_threads)
    in_float32, is_quantised = form == "float32", form in ("int8", "int4")
    if device.has_dynamic_shapes and not in_float32:
        in_float32 = not cpu_computes_bfloat16() or (is_quantised and _dequantises_in_advance())
    graph: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32" if in_float32 else "bf16"}
    if device.has_dynamic_shapes:
        graph |= _cpu_settings(num_threads)
    if is_quantised:
        graph |= _quantised_rows()
    return Settings(graph=graph)


def type_of_products(device: Device, kept: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a graph's products with quantised weights, where `kept` is that of what is not quantised."""
    is_wider = kept == BFLOAT16 and device.has_dynamic_shapes and _dequantises_in_advance()
    return FLOAT32 if is_wider else kept


@cache
def _dequantises_in_advance() -> bool:
    """Return whether the CPU's products in bfloat16 take int8 weights only as bfloat16, made when a graph is compiled.

    CPUs with AMX do so, which takes longer and more memory, unless both the graph and the hint are float32. A Zen 4
    does not, and takes a tenth longer for int4 weights by such a graph.
    """
    matrix = PackedMatrix("int8", (64, 64), np.zeros(64 * 64, np.int8), np.ones((64, 1), BFLOAT16))
    graph = {"INFERENCE_PRECISION_HINT": "bf16"} | _cpu_settings(1) | _quantised_rows()
    compiled = new_core().compile_model(head_graph(matrix, ANY, Constants(BFLOAT16, BFLOAT16)), "CPU", graph)
    compiled({X: np.zeros((1, 64), np.float32)})  # weights of graphs with dynamic shapes are made at the first call
    nodes = [(_layer_type(node), node.get_output_element_type(0)) for node in compiled.get_runtime_model().get_ops()]
    return ("Const", ov.Type.i8) not in nodes or any(layer == "Eltwise" for layer, _ in nodes)


def _layer_type(node: Node) -> str:
    return str(node.get_rt_info()["layerType"].astype(str))


def _quantised_rows() -> dict[str, Any]:
    """Let activations be quantised to int8 in groups: faster, and equal for any number of rows (`row_floor`)."""
    return {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 32 if has_vnni() else 0}


def _npu_settings(num_threads: int) -> Settings:
    graph = {"NPU_USE_NPUW": "YES", "NPUW_ONLINE_PIPELINE": "NONE", "NPUW_DEVICES": "NPU"}
    if not npu_is_on_cpu():
        return Settings(graph=graph)
    return Settings(
        graph=graph | {"NPUW_DEVICES": "CPU"},
        cpu=_cpu_settings(num_threads) | {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0},
    )


def _cpu_settings(num_threads: int) -> dict[str, Any]:
    return {
        "INFERENCE_NUM_THREADS": num_threads,
        "NUM_STREAMS": 1,
        # fused attention code rounds differently depending on the number of layers in the graph: if few query heads
        # share a key, a segment cut in two did not give the same bits
        "SNIPPETS_MODE": "DISABLE",
    }


_ROOT: Final = Path(__file__).parents[3]
_TIMEOUT_S: Final = 590.0
"""Time limit for compiling one graph, a little below that for loading a draft (`DRAFT_LOAD_DEADLINE_S`); an NPU takes
seconds."""
_REFUSED: Final = 3
"""Exit code for an error of OpenVINO, whose text is on stderr."""


def compiled_apart(model: ov.Model, device: str, settings: Settings, *, timeout_s: float = _TIMEOUT_S) -> bytes:
    """Compile a graph in another process; raise `LaneError` if OpenVINO refuses it, crashes or takes too long."""
    name = model.get_friendly_name()
    with tempfile.TemporaryDirectory() as folder:
        graph, made = Path(folder, "graph.xml"), Path(folder, "graph.blob")
        ov.serialize(model, graph)
        Path(folder, "settings.json").write_text(json.dumps(asdict(settings)))
        command = [sys.executable, "-P", "-m", __name__, folder, device, str(os.getpid())]
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            raise _error(device, name, f"has not compiled it for {timeout_s:g} s and was ended") from None
        if done.returncode == 0:
            return made.read_bytes()
        text = done.stderr.decode(errors="replace").strip()
        if done.returncode == _REFUSED:
            raise _error(device, name, f"refuses it: {text}")
        last = text.splitlines()[-1:] or ["it said nothing"]
        ending = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
        raise _error(device, name, f"ended its process ({ending}): {last[0]}")


def _error(device: str, name: str, what: str) -> LaneError:
    return LaneError(
        f"OpenVINO's compiler for {device} {what}. The graph is {name}. "
        "Another form of weights, another driver or a lane on another device (`mirrorsd devices`) may help"
    )


def main(folder: str, device: str, lane: str) -> int:
    """Compile the graph in a folder; the process ends with the lane's process, whose id is `lane`."""
    if not ends_with(int(lane)):
        return 1
    settings = Settings(**json.loads(Path(folder, "settings.json").read_text()))
    try:
        core = settings.new_core()
        compiled = core.compile_model(core.read_model(Path(folder, "graph.xml")), device, settings.graph)
        _run_once(compiled)
        Path(folder, "graph.blob").write_bytes(compiled.export_model().getbuffer())
    except RuntimeError as error:
        sys.stderr.write(str(error))
        return _REFUSED
    return 0


def _run_once(compiled: ov.CompiledModel) -> None:
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        request.get_tensor(port).data[...] = 0
    request.start_async()
    request.wait()


Compiled = NDArray[np.uint8]
"""The bytes of a compiled graph."""

_HARDWARE: Final = ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")


class Compiler:
    """Compiles graphs for one device, weight format and number of threads."""

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
        """Return a graph compiled in this process, not kept on disk; raise `LaneError` if OpenVINO refuses it."""
        try:
            return self._core.compile_model(model, self.device, self._settings.graph)
        except RuntimeError as error:
            raise LaneError(f"OpenVINO's {self.device} refuses a graph of {self.form} weights: {error}") from error

    def copy(self, compiled: Compiled) -> ov.CompiledModel:
        """Return a copy of a compiled graph; it reads the memory of `compiled` as long as it lives."""
        return self._core.import_model(ov.Tensor(compiled, shared_memory=True), self.device, self._settings.graph)

    def key(self, asked: Mapping[str, Any]) -> str:
        """Return a key of everything that a kept file depends on: `asked`, OpenVINO's version, hardware, settings."""
        return json.dumps({**self._identity, **asked}, sort_keys=True, default=str)

    def kept(self, key: Mapping[str, Any], build: Callable[[], ov.Model]) -> ov.CompiledModel:
        """Return the compiled graph of `build`, from disk if it has `key`; raise `LaneError` if OpenVINO refuses it."""
        path = path_of(self.key(key), ".blob")
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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
