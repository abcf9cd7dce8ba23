"""Compiling in a process of its own: a compiler that ends its process takes no lane with it.

`compiled_apart` starts this very module as a program, which is told by files: a graph, how to compile it, and where to
put what came of it. A graph is run once too, for some fail only then.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from decoding.errors import LaneError
from runtime.backends.openvino.library import ov
from runtime.backends.openvino.settings import Settings

_ROOT: Final = Path(__file__).parents[3]
_TIMEOUT_S: Final = 600.0
"""For one graph; NPUs take seconds."""
_REFUSED: Final = 3
"""Exit code after an error of OpenVINO's, which is on stderr."""


def compiled_apart(model: ov.Model, device: str, settings: Settings, *, timeout_s: float = _TIMEOUT_S) -> bytes:
    """Compile a graph in a process of its own, and return the result.

    Raises:
        LaneError: the compiler refused it, ended its process, or took too long; names the graph and what to do.
    """
    name = model.get_friendly_name()
    with tempfile.TemporaryDirectory() as folder:
        graph, made = Path(folder, "graph.xml"), Path(folder, "graph.blob")
        ov.serialize(model, graph)
        Path(folder, "settings.json").write_text(json.dumps(asdict(settings)))
        command = [sys.executable, "-P", "-m", __name__, folder, device]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT), *_paths()])}
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
        raise _error(device, name, f"ended its process ({_ending(done.returncode)}): {last[0]}")


def _error(device: str, name: str, what: str) -> LaneError:
    return LaneError(
        f"OpenVINO's compiler for {device} {what}. The graph is {name}. "
        "Another form of weights, another driver or a lane on another device (`mirrorsd devices`) may help"
    )


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _paths() -> Sequence[str]:
    return [path for path in [os.environ.get("PYTHONPATH")] if path]


def main(folder: str, device: str) -> int:
    """Compile the graph in a folder."""
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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
