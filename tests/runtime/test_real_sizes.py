"""Prompts and answers of the lengths that people ask for, by the embedded model on the usual lanes.

The reference is torch in float32, in one pass over a whole text: no cache, no buffer, no piece. Where lengths alone
matter, the first layers of the model serve.
"""

from functools import cache
from itertools import cycle, pairwise

import numpy as np
import pytest
import torch

from calibrate.prompts import bundled_prompts
from decoding.schedule import Schedule
from mirrorsd.prompt_tokens import encode
from runtime.arrays import inference
from runtime.backends.backend import prefill_pieces, tree_rows
from runtime.backends.eager import EagerBackend
from runtime.backends.lane_device import Device
from runtime.backends.openvino.buckets import limits_of
from runtime.backends.openvino.kv_buffers import GrowingCache, GrowingMemory
from runtime.drafters.registry import SHIPPED_FOLDER
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.models.decoder import load_decoder
from tests.runtime.reading import compiled, first_layers, prepare
from tests.tiny_models import tiny_config

EDGES = (1, 65, 255, 256, 257, 383, 511, 513, 768, 1023, 1025)
"""Lengths of prompts around all that a length is compared with: slots of buffers, rows of calls, keys at once."""
WINDOW = 5
NEAR = 2e-3
"""Of two logits, as sums of float32 in another order differ."""


@pytest.fixture(scope="module")
def text(embedded_model_folder):
    """Ids of the longest prompt that ships."""
    return np.array(max((prompt.ids for prompt in encode(bundled_prompts("long"), embedded_model_folder)), key=len))


def decoder_of(folder, form):
    return first_layers(load_decoder(folder, dtype=torch.float32 if form == "float32" else torch.bfloat16))


@cache
def backend_of(folder, form):
    return compiled(decoder_of(folder, form), form)


@inference
def read(backend, text, ids):
    """Logits [T, V] of the next rows of a text."""
    positions = np.arange(text.cursor, text.cursor + len(ids))
    x = backend.run_layers(backend.embedding(ids[None]), 0, backend.config.num_layers, positions=positions, cache=text)
    text.advance(len(ids))
    return torch.as_tensor(backend.logits(x[:, -WINDOW:])[0])


@inference
def read_prompt(backend, text, ids):
    text.start(len(ids) + WINDOW)
    for start, stop in prefill_pieces(len(ids)):
        read(backend, text, ids[start:stop])


def test_rows_after_prompts_of_any_length_and_order_are_those_of_torch_in_one_pass(embedded_model_folder, text):
    with torch.inference_mode():
        torch_backend = EagerBackend(decoder_of(embedded_model_folder, "float32"))
        whole = torch_backend.new_text()
        whole.start(len(text))
        positions = np.arange(len(text))
        x = torch_backend.embedding(text[None])
        x = torch_backend.run_layers(x, 0, torch_backend.config.num_layers, positions=positions, cache=whole)
        wanted = sorted({place for length in EDGES for place in range(length, length + WINDOW)})
        expected = dict(zip(wanted, torch_backend.logits(x[:, wanted])[0], strict=True))
    backend = backend_of(embedded_model_folder, "float32")
    prepare(backend, num_slots=len(text), num_prompt=EDGES[-1], rows=(1, 5))
    reused = backend.new_text()
    for length in np.random.default_rng(0).permutation(EDGES):
        read_prompt(backend, reused, text[:length])
        found = read(backend, reused, text[length : length + WINDOW])
        error = max(float((found[row] - expected[length + row]).abs().max()) for row in range(WINDOW))
        assert error < NEAR * 20, length
        assert [int(row.argmax()) for row in found] == [int(expected[length + row].argmax()) for row in range(WINDOW)]


@pytest.mark.parametrize("form", ["bfloat16", "float32", "int8", "int4"])
def test_windows_over_the_edge_of_a_buffer_have_the_bits_of_single_rows(embedded_model_folder, text, form):
    backend = backend_of(embedded_model_folder, form)
    prepare(backend, num_slots=1030, num_prompt=990, rows=(1, 5))
    last = Device.of_lane("openvino:CPU").spare_slots + WINDOW // 2
    for size in (256, 512) if form in ("int8", "int4") else (256, 768, 1024):
        length = size - last
        found = []
        for sizes in ([1] * WINDOW, [WINDOW]):
            own = backend.new_text()
            read_prompt(backend, own, text[:length])
            stops = np.cumsum([length, *sizes])
            rows = [read(backend, own, text[start:stop]) for start, stop in pairwise(stops)]
            found.append(torch.cat(rows))
        assert torch.equal(found[0], found[1]), (form, length)


@pytest.mark.parametrize(("lane", "one_call"), [("openvino:CPU", True), ("openvino:NPU", False)])
def test_a_window_over_the_edge_of_a_buffer_reads_the_weights_twice_only_where_sums_may_differ(lane, one_call):
    device = Device.of_lane(lane)
    text = GrowingCache(GrowingMemory(tiny_config(), 1, limits_of(device).half, device))
    for edge in (256, 512, 1024, 2048):
        first = edge - device.spare_slots - WINDOW // 2
        assert device.num_slots(first + 1) == edge < device.num_slots(first + WINDOW)
        assert len(list(text.parts(range(first, first + WINDOW)))) == (1 if one_call and edge < 1024 else 2), edge


@pytest.mark.parametrize("path", [[1], [1, 3], [1, 3, 4]])
def test_a_path_of_a_tree_over_the_edge_of_a_buffer_is_what_the_path_alone_is(embedded_model_folder, text, path):
    """The path's keys move where those of other nodes were, and the next rows may run in the buffer before the edge."""
    backend = backend_of(embedded_model_folder, "float32")
    tree = tree_rows((-1, -1, 0, 1, 3))
    for size in (256, 1024):
        # the deepest node alone is beyond the edge
        length = size - Device.of_lane("openvino:CPU").spare_slots - int(tree.depths[-1])
        drafted, own, alone = [length + 40, *range(length + 1, length + 5)], backend.new_text(), backend.new_text()
        for one in (own, alone):
            read_prompt(backend, one, text[:length])
        x = backend.embedding(text[[length, *drafted]][None])
        positions, num_layers = tree.depths + length, backend.config.num_layers
        backend.run_layers(x, 0, num_layers, positions=positions, mask=tree.mask(length), cache=own)
        own.gather([length + 1 + node for node in path], length + 1)
        for row in [length, *(drafted[node] for node in path)]:
            read(backend, alone, text[[row]])
        for row in range(length + 50, length + 54):
            found, expected = (read(backend, one, text[[row]]) for one in (own, alone))
            assert torch.allclose(found, expected, atol=NEAR), size


def test_every_chain_writes_plain_decodings_text_of_long_prompts_in_any_order(embedded_model_folder):
    """On lanes that are asked for one prompt after the other, by one schedule after the other."""
    target, draft = "openvino:CPU@0", "openvino:CPU@1"
    split = {"target_lane": target, "draft_lane": draft, "num_speculative_tokens": 3}
    exits = {"method": "mirror", "exit_layer": 20, "exit_top_k": 3}
    chains = [
        Schedule(method="speculative", exit_features=True, **split),
        Schedule(root_source="exit", exit_features=True, **exits, **split),
        Schedule(root_source="hybrid", draft_top_k=2, **exits, **split),
        Schedule(
            method="prompt_lookup", **split | {"draft_lane": target}, drafter=str(SHIPPED_FOLDER / "prompt-lookup")
        ),
    ]
    by_name = {prompt.name: prompt.ids for prompt in encode(bundled_prompts("long"), embedded_model_folder)}
    prompts = [by_name["long-transcript"], by_name["long-module"], by_name["long-passages"]]
    lanes = [LaneSpec(name=target, cores=()), LaneSpec(name=draft, cores=())]
    with Engine(
        embedded_model_folder,
        lanes=lanes,
        drafter_folder=SHIPPED_FOLDER / "smollm2-135m-draft4",
        exits_folder=SHIPPED_FOLDER / "smollm2-135m-exits",
        draft_deadline_s=60.0,
    ) as engine:

        def ask(schedule, prompt):
            made = engine.generate(schedule, prompt, max_new_tokens=16)
            assert made.trace.events == []
            return made.tokens

        plain = Schedule(method="autoregressive", target_lane=target)
        expected = {prompt: ask(plain, prompt) for prompt in prompts}
        assert len(set(expected.values())) == len(prompts)
        for schedule, prompt in zip(chains, cycle(prompts), strict=False):  # each longer or shorter than the one before
            assert ask(schedule, prompt) == expected[prompt], schedule
        assert ask(plain, prompts[0]) == expected[prompts[0]]
