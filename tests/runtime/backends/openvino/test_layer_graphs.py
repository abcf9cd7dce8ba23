"""Weights are held once: a layer is in one graph, whatever segments are asked for, and sizes cost no weights."""

import gc
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from runtime.backends.backend import Plan, segments_between
from runtime.backends.openvino.compiled_decoder import OpenVinoBackend
from runtime.memory.freed import give_back_freed
from runtime.models.decoder import Decoder
from runtime.models.random_weights import fill_at_random
from tests.runtime.backends.openvino.test_compiled_decoder import read
from tests.tiny_models import tiny_config, tiny_target

STATUS = Path("/proc/self/status")
MIDDLING = {"hidden_size": 768, "intermediate_size": 3072, "num_heads": 12, "num_kv_heads": 4, "head_dim": 64}


def graphs_of(backend):
    return sorted(shape[:2] for shape in backend._graphs._calls)


def plan(*cuts, num_layers=4, rows=(3,), num_slots=100):
    prompt = segments_between(num_layers)
    segments = segments_between(*cuts, num_layers)
    return Plan(num_slots=num_slots, num_prompt=40, rows=rows, segments=segments, prompt_segments=prompt)


def test_a_layer_is_in_one_graph_whatever_was_asked_for() -> None:
    backend = OpenVinoBackend(tiny_target(max_position=400), device="CPU", form="bfloat16", num_threads=1)
    expected = read(backend, [4] * 40)
    assert graphs_of(backend) == [(0, 4)]
    for cuts, graphs in (
        ((), [(0, 4)]),
        ((1,), [(0, 1), (1, 4)]),
        ((), [(0, 1), (1, 4)]),
        ((3,), [(0, 1), (1, 3), (3, 4)]),
    ):
        backend.prepare(plan(*cuts))
        assert graphs_of(backend) == graphs
        assert torch.equal(read(backend, [4] * 40, cuts=cuts), expected)


def test_one_graph_has_all_sizes_that_were_prepared() -> None:
    backend = OpenVinoBackend(tiny_target(max_position=400), device="CPU", form="int8", num_threads=1)
    backend.prepare(plan(2, rows=(8, 16), num_slots=300))
    sizes = {(*shape[:2], *size) for shape, *size in backend._graphs._ready}
    assert sizes == {
        (*part, 1, rows, slots) for part in pairwise((0, 2, 4)) for rows in (8, 16) for slots in (128, 256, 512)
    }
    assert graphs_of(backend) == [(0, 2), (2, 4)]


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_a_decoder_has_no_matrices_of_its_own_once_they_are_rounded(form) -> None:
    decoder = tiny_target(max_position=400).to(torch.bfloat16)
    backend = OpenVinoBackend(decoder, device="CPU", form=form, num_threads=1)
    backend.prepare(plan())
    assert {weight.device.type for weight in decoder.layers.parameters() if weight.dim() == 2} == {"meta"}
    assert not any(weight.is_meta for name, weight in decoder.named_parameters() if not name.startswith("layers"))


@pytest.mark.skipif(not STATUS.exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("form", ["bfloat16", "int8", "int4"])
def test_a_target_with_an_exit_takes_its_weights_once(form) -> None:
    """A decoder of 69 million weights, rounded ones of which are mapped; graphs take some megabytes besides."""
    config = tiny_config(num_layers=8, vocab_size=1000, max_position=400, **MIDDLING)
    with torch.device("meta"):
        decoder = Decoder(config)
    fill_at_random(decoder, 0, torch.bfloat16, is_shared=form != "bfloat16")
    decoder = decoder_with_tables(decoder)
    backend = OpenVinoBackend(decoder, device="CPU", form=form, num_threads=1)
    weights = sum(backend._layers[index].num_bytes for index in range(8))
    start = private_bytes()
    backend.prepare(plan(3, num_layers=8, rows=(1,)))
    once = private_bytes()
    for cuts, rows in (((3,), 5), ((), 9), ((5,), 8)):
        backend.prepare(plan(*cuts, num_layers=8, rows=(rows,), num_slots=200))
        read(backend, [16, rows], ids=torch.arange(60) % 1000, cuts=cuts)
    assert once - start > 0.8 * weights
    assert private_bytes() - start < 1.3 * weights + 30e6


def decoder_with_tables(decoder):
    fresh = Decoder(decoder.config)
    decoder.rotary, decoder.lm_head.weight = fresh.rotary, decoder.embedding.weight
    return decoder.eval().requires_grad_(requires_grad=False)


def private_bytes():
    gc.collect()
    give_back_freed()
    return 1024 * int(STATUS.read_text().partition("RssAnon:")[2].split()[0])
