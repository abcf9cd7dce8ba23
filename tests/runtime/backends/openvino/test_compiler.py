"""What was compiled and kept is read from disk, as long as it is the same and whole."""

import errno
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from decoding.errors import LaneError
from runtime.backends.lane_device import Device
from runtime.backends.openvino.compiler import Compiler
from runtime.backends.openvino.disk_cache import compiled_folder
from runtime.backends.openvino.library import op, ov

pytestmark = pytest.mark.usefixtures("empty_cache")


class Builder:
    """Makes the graph that adds a number, and counts how often it was asked."""

    def __init__(self, number):
        self.number, self.count = number, 0

    def __call__(self):
        self.count += 1
        x = op.parameter([2], ov.Type.f32)
        return ov.Model([op.add(x, op.constant(np.float32(self.number)))], [x], "sum")


def compiler_of(form="float32", num_threads=1):
    return Compiler(Device.of_lane("openvino:CPU"), form, num_threads)


def first_of(compiled):
    return float(compiled([np.array([1, 2], np.float32)])[0][0])


def test_a_graph_is_compiled_once_for_all_processes():
    build = Builder(3.0)
    for _ in range(3):
        assert first_of(compiler_of().kept({"number": 3}, build)) == 4.0
    assert build.count == 1
    assert [path.suffix for path in compiled_folder().iterdir()] == [".blob"]


@pytest.mark.parametrize(
    "other", [("float32", 1, {"number": 4}), ("bfloat16", 1, {"number": 3}), ("float32", 2, {"number": 3})]
)
def test_another_graph_form_or_number_of_threads_is_compiled_anew(other):
    form, num_threads, key = other
    build = Builder(3.0)
    compiler_of().kept({"number": 3}, build)
    compiler_of(form, num_threads).kept(key, build)
    assert build.count == 2


@pytest.mark.parametrize("num_zeros", [0, None], ids=["cut off", "zeros, as a power cut leaves it"])
def test_a_damaged_file_is_made_again(num_zeros):
    build = Builder(3.0)
    compiler_of().kept({"number": 3}, build)
    (path,) = compiled_folder().iterdir()
    whole = path.read_bytes()
    half = whole[: len(whole) // 2]
    path.write_bytes(half + bytes(len(whole) - len(half) if num_zeros is None else num_zeros))
    for _ in range(2):
        assert first_of(compiler_of().kept({"number": 3}, build)) == 4.0
    assert build.count == 2  # the first made the file again, the second read it


def test_a_folder_that_cannot_be_written_costs_time_alone(tmp_path):
    compiled_folder().parent.mkdir()
    compiled_folder().write_text("in the way")
    build = Builder(3.0)
    for _ in range(2):
        assert first_of(compiler_of().kept({"number": 3}, build)) == 4.0
    assert build.count == 2


def test_what_may_be_read_but_not_written_is_used(monkeypatch):
    """A cache in a container's image, or another user's."""
    build = Builder(3.0)
    compiler_of().kept({"number": 3}, build)
    monkeypatch.setattr(os, "utime", read_only)
    monkeypatch.setattr("runtime.backends.openvino.compiler.write", read_only)
    assert first_of(compiler_of().kept({"number": 3}, build)) == 4.0
    assert build.count == 1


def read_only(path, *_):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


def test_what_was_not_used_for_longest_makes_room(monkeypatch):
    first, second = Builder(3.0), Builder(4.0)
    compiler_of().kept({"number": 3}, first)
    [file] = compiled_folder().iterdir()
    monkeypatch.setattr("runtime.backends.openvino.disk_cache._MOST_BYTES", 1.5 * file.stat().st_size)
    compiler_of().kept({"number": 4}, second)
    assert len(list(compiled_folder().iterdir())) == 1
    compiler_of().kept({"number": 4}, second)
    assert second.count == 1


@pytest.mark.parametrize(("free", "num_kept"), [(10, 0), (10_000_000, 2)])
def test_half_of_what_is_free_is_left_to_others(monkeypatch, free, num_kept):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    for number in (3, 4):
        assert first_of(compiler_of().kept({"number": number}, Builder(3.0))) == 4.0
    assert len(list(compiled_folder().iterdir())) == num_kept


def test_what_would_not_fit_alone_takes_nothing_away(monkeypatch):
    compiler_of().kept({"number": 3}, Builder(3.0))
    kept = list(compiled_folder().iterdir())
    monkeypatch.setattr("runtime.backends.openvino.disk_cache._MOST_BYTES", 10)
    assert first_of(compiler_of().kept({"number": 4}, Builder(4.0))) == 5.0
    assert list(compiled_folder().iterdir()) == kept


def test_what_takes_no_time_is_compiled_anew():
    assert first_of(compiler_of().compiled(Builder(3.0)())) == 4.0
    assert not compiled_folder().exists()


def test_a_graph_that_the_device_refuses_is_an_error_of_the_lane(monkeypatch):
    def refuse(*_):
        raise RuntimeError("no such operation")

    monkeypatch.setattr(ov.Core, "compile_model", refuse)
    with pytest.raises(LaneError, match="OpenVINO's CPU refuses a graph of float32 weights: no such operation"):
        compiler_of().kept({"number": 5}, Builder(3.0))


CORES_OF_THREADS = """
import os
import threading
import numpy as np
from runtime.backends.lane_device import Device
from runtime.backends.openvino.compiler import Compiler
from runtime.backends.openvino.library import op, ov

x, weight = op.parameter([256, 1024], ov.Type.f32), op.constant(np.ones((1024, 1024), np.float32))
graph = ov.Model([op.matmul(x, weight, False, False)], [x], "product")
compiled = Compiler(Device.of_lane("openvino:CPU"), "float32", 2).compiled(graph)
seen, is_over = set(), threading.Event()

def look():
    while not is_over.is_set():
        masks = [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]
        seen.add(frozenset(core for mask in masks if len(mask) == 1 for core in mask))

looking = threading.Thread(target=look)
looking.start()
for _ in range(200):
    compiled([np.ones((256, 1024), np.float32)])
is_over.set()
looking.join()
print(max(map(len, seen)))
"""


@pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two cores")
def test_the_threads_of_a_lane_stay_on_a_core_each():
    """The scheduler may put two of them on one core for seconds, where both then compute at the speed of one."""
    run = subprocess.run([sys.executable, "-c", CORES_OF_THREADS], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["2"]
