"""The NPU's path, on the CPU: what it computes, what it refuses before it compiles, and a compiler that ends itself."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from select import select

import numpy as np
import pytest
import torch

from decoding.errors import ConfigError, LaneError
from runtime.backends.eager import EagerBackend
from runtime.backends.lane_device import Device
from runtime.backends.openvino import compiler
from runtime.backends.openvino.buckets import limits_of
from tests.runtime.reading import compiled, prepare, read, rounded
from tests.tiny_models import VOCAB_SIZE, tiny_target

pytestmark = pytest.mark.usefixtures("npu_on_cpu")
NPU = Device.of_lane("openvino:NPU")
COMPILED_APART = compiler.compiled_apart
NUM_LAYERS = 4
IDS = torch.randint(VOCAB_SIZE, (150,), generator=torch.Generator().manual_seed(1))
SHAPES = {"a scale for a row": {}, "a scale for 64 inputs": {"hidden_size": 64, "intermediate_size": 192}}


def decoder_of(shape="a scale for a row", **more):
    return tiny_target(**SHAPES[shape], num_layers=NUM_LAYERS, tie_embeddings=False, max_position=400, **more)


@cache
def backend_of(form, shape="a scale for a row"):
    return prepare(compiled(decoder_of(shape), form, NPU.name), num_slots=100, num_prompt=20, rows=(1, 3))


def eager_logits(decoder):
    return read(EagerBackend(decoder), [len(IDS)], ids=IDS)


@pytest.mark.parametrize("chunks", [[1], [3], [16, 3, 1, 7, 2]], ids=str)
def test_float32_logits_are_the_decoders_over_rows_of_all_graphs_and_more_slots_than_the_first_has(chunks):
    expected = eager_logits(decoder_of())
    found = read(backend_of("float32"), chunks * len(IDS), ids=IDS)
    assert torch.allclose(found, expected, atol=2e-3, rtol=1e-3)
    assert torch.equal(found.argmax(dim=-1), expected.argmax(dim=-1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", ["bfloat16", "int8", "int4"])
def test_logits_are_those_of_the_rounded_weights(form, shape):
    """In float16, while hidden states cross in bfloat16; the head is int8 where layers are int4."""
    found = read(backend_of(form, shape), [3] * len(IDS), ids=IDS)
    near = eager_logits(rounded(decoder_of(shape), form))
    far = eager_logits(decoder_of(shape).to(torch.bfloat16).float())
    error = (found - near).abs().mean()
    assert error < 0.02 * near.abs().mean()
    assert form == "bfloat16" or error < 0.5 * (far - near).abs().mean()
    assert (found.argmax(dim=-1) == near.argmax(dim=-1)).float().mean() > 0.95


@pytest.mark.parametrize("fewest", [None, 2])
def test_graphs_of_branches_have_the_sizes_of_all_graphs(fewest):
    """One for each of many numbers would be compiled, and held, with weights of its own."""
    planned = {"num_slots": 100, "num_prompt": 0, "rows": (1,), "prompt_segments": ()}
    backend = compiled(decoder_of(), "float32", NPU.name)
    prepare(backend, **planned, num_branches=5, least_branches=fewest)
    assert backend._num_texts == {limits_of(NPU).bucket(5)} != {5}


def test_a_step_has_the_rows_of_the_next_graph():
    limits = limits_of(NPU)
    assert [limits.bucket(count) for count in (1, 2, 3, 4, 5, 9, 17, 64)] == [1, 2, 4, 4, 8, 16, 32, 64]
    assert limits_of(Device.of_lane("openvino:CPU")).bucket(3) == 3


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"num_slots": 4096, "num_prompt": 4000}, r"of 4096 KV positions, 4000 of them its prompt's, .* 4095 at most"),
        ({"num_branches": 65}, r"a step of 65 rows does not fit openvino:NPU: its graphs have 64 at most"),
        ({"rows": (1, 70)}, "a step of 70 rows"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_number_before_anything_is_compiled(monkeypatch, size, message):
    monkeypatch.setattr(compiler, "compiled_apart", lambda *_: pytest.fail("it was compiled"))
    monkeypatch.setattr(compiler, "mapped", lambda *_: pytest.fail("it was read"))
    backend = compiled(decoder_of(), "int8", NPU.name)
    with pytest.raises(ConfigError, match=message):
        prepare(backend, **{"num_slots": 100, "num_prompt": 20, "rows": (1,)} | size)


@pytest.fixture
def fresh(tmp_path, monkeypatch, empty_cache):
    """Nothing is compiled yet, and what the compiler's process does first can be written."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(compiler, "compiled_apart", COMPILED_APART)
    return tmp_path / "sitecustomize.py"


def prepare_head(form="int8"):
    compiled(decoder_of(), form, NPU.name).logits(np.zeros((1, 3, 16), np.float32))


def test_a_compiler_that_ends_its_process_is_an_error_with_the_graph_and_what_may_help(fresh):
    fresh.write_text("import os\nos.abort()\n")
    with pytest.raises(
        LaneError, match=r"ended its process \(SIGABRT\).*The graph is a head of 4 rows.*another driver"
    ):
        prepare_head()


def test_a_compiler_that_hangs_is_ended(fresh, monkeypatch):
    fresh.write_text("import time\ntime.sleep(1000)\n")
    whole = COMPILED_APART
    monkeypatch.setattr(compiler, "compiled_apart", lambda *given: whole(*given, timeout_s=0.5))
    with pytest.raises(LaneError, match=r"has not compiled it for 0\.5 s and was ended"):
        prepare_head()


HANGS = """
import sys
if "runtime.backends.openvino.compiler" in sys.orig_argv:
    import openvino, os, time
    def hang(*_):
        os.write(os.open({told!r}, os.O_WRONLY), b"it hangs")
        time.sleep(100)
    openvino.Core = hang
"""
COMPILES = """
from runtime.backends.openvino import compiler
from runtime.backends.openvino.library import op, ov
x = op.parameter([2], ov.Type.f32)
compiler.compiled_apart(ov.Model([op.relu(x)], [x], "a graph"), "NPU", compiler.Settings(graph={}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's prctl")
def test_a_compiler_ends_with_its_lane(fresh, monkeypatch):
    told = fresh.parent / "told"
    os.mkfifo(told)
    fresh.write_text(HANGS.format(told=str(told)))
    monkeypatch.setenv("PYTHONPATH", f"{fresh.parent}{os.pathsep}{Path(__file__).parents[4]}")
    with (
        subprocess.Popen([sys.executable, "-c", COMPILES]) as lane,
        os.fdopen(os.open(told, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as said,
    ):
        assert select([said], [], [], 120)[0], "the compiler never began"
        assert said.read(8) == b"it hangs"
        lane.kill()
        assert select([said], [], [], 30)[0], "the compiler goes on"
        assert said.read(8) == b""


def test_a_graph_that_the_compiler_refuses_is_an_error_with_its_words(fresh):
    fresh.write_text("import openvino\ndef refuse(*_): raise RuntimeError('no such thing')\nopenvino.Core = refuse\n")
    with pytest.raises(LaneError, match=r"compiler for NPU refuses it: no such thing\. The graph is a head of 4 rows"):
        prepare_head()


def test_what_was_compiled_is_read_from_disk(fresh, monkeypatch):
    prepare_head()
    monkeypatch.setattr(compiler, "compiled_apart", lambda *_: pytest.fail("it was compiled again"))
    prepare_head()
