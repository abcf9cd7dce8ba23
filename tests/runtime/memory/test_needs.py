"""What is worked out before loading is what is taken: parameters, caches and branches, to the byte."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from decoding.errors import ModelFormatError
from decoding.schedule import Schedule
from runtime.arrays import BFLOAT16
from runtime.backends.lane_device import Device
from runtime.backends.openvino.buckets import COPIES_BYTES, copies_bytes, limits_of
from runtime.backends.openvino.kv_buffers import GrowingCache, GrowingMemory
from runtime.backends.openvino.packing import PackedLayers, packed
from runtime.drafters.language_model.drafter import num_roots, slots_needed
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.memory.model_bytes import (
    ITEM_BYTES,
    DraftSize,
    keys_values_bytes,
    matrices_bytes,
    num_parameters,
    weight_bytes,
)
from runtime.memory.needs import (
    COMPILED_PROCESS_BYTES,
    PROCESS_BYTES,
    LaneNeed,
    draft_size,
    memory_needed,
)
from runtime.models.config import ModelConfig, decoder_shapes
from runtime.models.decoder import Decoder
from runtime.models.kv_cache import BranchCache, KVCache
from runtime.models.model_folder import save_shape
from runtime.storage.safetensors_files import content_of
from runtime.storage.stored_decoder import random_arrays, stored_decoder
from runtime.target.early_exits import load_exits
from tests.runtime.reading import stored_form
from tests.tiny_models import OPT, tiny_config

SHAPES = {
    "llama": {},
    "untied": {"tie_embeddings": False},
    "qwen2": {"attention_bias": True},
    "qwen3": {"qk_norm": True},
    "biased": {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
    "opt": OPT,
}
TORCH = {"bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.bfloat16, "int4": torch.bfloat16}
SPECULATIVE = Schedule(method="speculative", target_lane="big", draft_lane="small", num_speculative_tokens=4)
MIRROR = Schedule(
    method="mirror",
    target_lane="big",
    draft_lane="small",
    num_speculative_tokens=4,
    root_source="hybrid",
    exit_layer=2,
    exit_top_k=3,
    draft_top_k=2,
)
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151_936,
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
}
OPT_66B = {
    "architectures": ["OPTForCausalLM"],
    "vocab_size": 50_272,
    "num_hidden_layers": 64,
    "hidden_size": 9216,
    "ffn_dim": 36_864,
    "num_attention_heads": 72,
    "max_position_embeddings": 2048,
}


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_those_of_the_decoder(name):
    config = tiny_config(**SHAPES[name])
    with torch.device("meta"):
        decoder = Decoder(config)
    assert num_parameters(config) == sum(parameter.numel() for parameter in decoder.parameters())
    tables = sum(buffer.nbytes for buffer in decoder.buffers())
    for dtype in ("bfloat16", "float32"):
        assert weight_bytes(config, dtype) == num_parameters(config) * ITEM_BYTES[dtype] + tables


def bytes_of_graphs(stored, form):
    """Bytes of a decoder's layers and its head as graphs hold them."""
    head, layers = packed(stored.lm_head.weight, "int8", BFLOAT16), PackedLayers(stored, form, BFLOAT16)
    return head.num_bytes + sum(layers[index].num_bytes for index in range(stored.config.num_layers))


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("name", ["llama", "untied", "qwen2", "qwen3"])
@pytest.mark.parametrize("form", ["int8", "int4"])
def test_rounded_weights_are_those_of_the_graphs(name, form):
    """Next to what stays as it was: the embedding, vectors and rotations."""
    config = tiny_config(**SHAPES[name], hidden_size=64, intermediate_size=192)
    decoder = Decoder(config).to(torch.bfloat16)
    stored = stored_form(decoder)
    graphs = bytes_of_graphs(stored, form)
    vectors = sum(array.nbytes for layer in stored.layers for array in layer.values()) + decoder.final_norm.nbytes
    rotations = 2 * config.max_position * config.head_dim * 4
    assert weight_bytes(config, form) == graphs + vectors + stored.embedding.weight.nbytes + rotations


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("raw", [QWEN3_8B | {"tie_word_embeddings": False}, QWEN3_8B, OPT_66B])
@pytest.mark.parametrize("form", ["int8", "int4"])
def test_random_weights_take_no_more_than_the_graphs_and_blocks_that_all_matrices_share(raw, form):
    small = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 8, "vocab_size": 211}
    folder = save_shape(raw | small | {"intermediate_size": 192, "ffn_dim": 192}, "small", source="small")
    config = ModelConfig.from_folder(folder)
    arrays = random_arrays(decoder_shapes(config), 0, BFLOAT16)
    vectors = sum(one.nbytes for one in arrays.values() if one.ndim == 1)
    stored = stored_decoder(config, arrays)
    rotations = sum(table.nbytes for table in stored.rotary)
    assert weight_bytes(config, form) == bytes_of_graphs(stored, form) + vectors + rotations


def test_a_model_of_8_billion_weights_fits_where_it_does_in_16_bits_not():
    config = replace(ModelConfig.from_hf(QWEN3_8B), random_seed=0)
    sizes = {form: weight_bytes(config, form) / 1e9 for form in ("bfloat16", "int8", "int4")}
    assert sizes == pytest.approx({"bfloat16": 16.42, "int8": 7.63, "int4": 4.35}, abs=0.05)


def test_parameters_of_models_that_people_know():
    assert num_parameters(ModelConfig.from_hf(QWEN3_8B)) == 8_190_735_360
    hidden = 9216
    by_hand = 64 * (12 * hidden**2 + 13 * hidden) + (50_272 + 2048 + 2 + 2) * hidden
    assert num_parameters(ModelConfig.from_hf(OPT_66B)) == by_hand


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("num_slots", [1, 63, 64, 65, 300])
def test_keys_and_values_are_those_of_a_cache(num_slots, dtype):
    cache = KVCache(tiny_config(), num_slots, dtype=TORCH[dtype])
    assert keys_values_bytes(tiny_config(), num_slots, dtype) == cache.memory.slots.nbytes


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("schedule", [SPECULATIVE, MIRROR])
def test_a_draft_needs_a_text_for_every_branch(schedule, dtype):
    config = tiny_config(num_layers=2)
    draft = DraftSize(layers=config, num_outputs=61, weights=1000)
    need = memory_needed(tiny_config(), schedule, dtype=dtype, num_tokens=70, draft=draft)["small"]
    slots = slots_needed(schedule, 70)
    text = KVCache(config, slots, dtype=TORCH[dtype])
    branches = BranchCache(config, num_roots(schedule), dtype=TORCH[dtype])
    branches.start(slots)
    assert need.weights == 1000
    assert need.keys_values == text.memory.slots.nbytes
    assert need.branches == branches.memory.slots.nbytes
    assert need.process == PROCESS_BYTES


def test_a_pooled_lane_holds_both_models_in_one_process():
    draft = DraftSize(layers=tiny_config(num_layers=2), num_outputs=61, weights=1000)
    pooled = SPECULATIVE.model_copy(update={"draft_lane": "big"})
    split, both = (
        memory_needed(tiny_config(), one, dtype="bfloat16", num_tokens=70, draft=draft) for one in (SPECULATIVE, pooled)
    )
    assert set(both) == {"big"}
    assert both["big"] == split["big"] + replace(split["small"], process=0)


def test_more_of_anything_never_needs_less():
    draft = DraftSize(layers=tiny_config(num_layers=2), num_outputs=61, weights=1000)

    def total(schedule=MIRROR, num_tokens=70, **changes):
        needs = memory_needed(
            tiny_config(**changes), schedule, dtype="bfloat16", num_tokens=num_tokens, draft=draft
        ).values()
        return sum(need.total for need in needs)

    assert total(num_tokens=700) > total() > total(num_layers=3) > total(SPECULATIVE, num_layers=3)
    assert total(vocab_size=200) > total()


def test_a_draft_has_its_own_weights_or_its_files_and_what_is_the_targets(tiny_folders):
    target = tiny_folders.decoder.config
    whole = draft_size(tiny_folders.target, target, "bfloat16", shares_lane=False)
    assert whole.weights == weight_bytes(target, "bfloat16")
    assert (whole.layers, whole.num_outputs) == (target, 61)
    trained, shared = (
        draft_size(tiny_folders.drafter, target, "bfloat16", shares_lane=shares) for shares in (False, True)
    )
    assert trained.layers.num_layers == 4
    layers, head_rows = num_parameters(target) - 61 * 16, 61 * 16
    assert shared.weights == 2 * (layers + head_rows)
    assert trained.weights - shared.weights == 2 * num_parameters(replace(target, num_layers=0))


def test_exits_are_in_the_targets_lane(tiny_folders):
    plain = Schedule(method="autoregressive", target_lane="cpu0")
    target = tiny_folders.decoder.config
    exits = load_exits(tiny_folders.exits, tiny_folders.decoder, dtype=torch.float32)
    copied = exits.kept_ids.numel() * target.hidden_size
    adapters = sum(weight.numel() for adapter in exits.adapters.values() for weight in adapter.parameters())
    own = Engine(tiny_folders.target, lanes=[LaneSpec(name="cpu0")], dtype="float32")
    both = Engine(tiny_folders.target, lanes=[LaneSpec(name="cpu0")], exits_folder=tiny_folders.exits, dtype="float32")
    needs = [engine.memory_needed(plain, 20)["cpu0"] for engine in (own, both)]
    assert needs[1] == needs[0] + LaneNeed(weights=4 * (adapters + copied))


def test_what_drafts_without_weights_takes_nothing(tmp_path):
    (tmp_path / "config.json").write_text('{"speculators_model_type": "mirrorsd_prompt_lookup"}')
    size = draft_size(tmp_path, tiny_config(), "float32", shares_lane=False)
    assert size.weights == 0
    assert keys_values_bytes(size.layers, 100, "float32") == 0


@pytest.mark.parametrize(
    ("kind", "process"), [("mirrorsd_draft", COMPILED_PROCESS_BYTES), ("mirrorsd_eagle3", PROCESS_BYTES)]
)
def test_a_lane_of_graphs_imports_torch_for_heads_alone(tmp_path, kind, process):
    (tmp_path / "config.json").write_text(json.dumps({"speculators_model_type": kind, "draft_vocab_size": 30}))
    (tmp_path / "model.safetensors").write_bytes(content_of({"w": np.zeros((3, 4), np.float32)}))
    size = draft_size(tmp_path, tiny_config(), "bfloat16", shares_lane=False)
    lanes = {"target_lane": "openvino:CPU@0", "draft_lane": "openvino:CPU@1"}
    needs = memory_needed(
        tiny_config(), SPECULATIVE.model_copy(update=lanes), dtype="bfloat16", num_tokens=70, draft=size
    )
    assert needs["openvino:CPU@0"].process == COMPILED_PROCESS_BYTES
    assert needs["openvino:CPU@1"].process == process


def test_a_compiled_lane_holds_every_buffer_that_a_text_passed_through_and_room_where_calls_are_filled_up():
    config = tiny_config(num_layers=2)
    draft = DraftSize(layers=config, num_outputs=61, weights=1000)
    needs = {}
    for lane in ("openvino:CPU@1", "openvino:NPU"):
        schedule = MIRROR.model_copy(update={"target_lane": "openvino:CPU@0", "draft_lane": lane})
        needs |= memory_needed(config, schedule, dtype="bfloat16", num_tokens=300, draft=draft)
    cpu = Device.of_lane("openvino:CPU")
    text = GrowingCache(GrowingMemory(config, 1, limits_of(cpu).half, cpu))
    text.start(300)
    for length in (100, 200, 300):
        text.memory.reserve(length, num_kept=0)
    held = sum(buffer.slots.nbytes for buffer in text.memory._buffers.values())
    assert needs["openvino:CPU@0"].keys_values == needs["openvino:CPU@1"].keys_values == held
    assert needs["openvino:CPU@1"].branches == num_roots(MIRROR) * held
    assert needs["openvino:NPU"].branches == 2 * num_roots(MIRROR) * needs["openvino:NPU"].keys_values


def test_a_compiled_lane_holds_copies_of_a_small_decoders_graphs():
    config = tiny_config(num_layers=2)

    def weights(lane, dtype="bfloat16"):
        plain = Schedule(method="autoregressive", target_lane=lane)
        return memory_needed(config, plain, dtype=dtype, num_tokens=300)[lane].weights

    copies = COPIES_BYTES + matrices_bytes(config, "float32")
    assert weights("openvino:CPU@0", "float32") - weights("cpu0", "float32") == copies
    assert weights("openvino:NPU") == weights("cpu0")
    assert [copies_bytes(num_bytes) for num_bytes in (1, COPIES_BYTES // 2, COPIES_BYTES + 1)] == [
        COPIES_BYTES + 1,
        COPIES_BYTES // 2,
        0,
    ]


def test_a_cpu_without_bfloat16_holds_weights_in_float32_once(monkeypatch):
    """Those that are widened are mapped from a file, as a target in float32 is."""
    monkeypatch.setattr("runtime.backends.openvino.buckets.cpu_computes_bfloat16", lambda: False)
    schedule = Schedule(method="autoregressive", target_lane="openvino:CPU@0")
    needs = [
        memory_needed(tiny_config(num_layers=2), schedule, dtype=dtype, num_tokens=300)["openvino:CPU@0"]
        for dtype in ("bfloat16", "float32")
    ]
    assert needs[0].weights == needs[1].weights


@pytest.mark.parametrize(
    "content", [b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", b"<!DOCTYPE html>"]
)
def test_a_pointer_or_a_page_in_place_of_weights_is_told_and_takes_no_memory(tmp_path, content):
    (tmp_path / "config.json").write_text('{"speculators_model_type": "mirrorsd_draft", "draft_vocab_size": 30}')
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelFormatError, match=r"not a safetensors file, as a pointer of Git LFS .*copy it again"):
        draft_size(tmp_path, tiny_config(), "float32", shares_lane=False)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"speculators_model_type": "mirrorsd_draft", "draft_vocab_size": "4"}, "draft_vocab_size is damaged"),
        ({"speculators_model_type": "mirrorsd_draft", "draft_vocab_size": 10**400}, "draft_vocab_size is damaged"),
        ({"speculators_model_type": "mirrorsd_draft", "source_layers": 5}, "source_layers or .* is damaged"),
        (
            {"speculators_model_type": "mirrorsd_parallel_track", "num_tracks": 10**9, "layers_per_segment": 1}
            | dict.fromkeys(("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim"), 4),
            r"config\.json: num_tracks: .*1000000000",
        ),
    ],
)
def test_a_damaged_config_of_a_draft_is_told_before_anything_is_counted(tmp_path, fields, told):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "model.safetensors").write_bytes(content_of({"w": np.zeros((3, 4), np.float32)}))
    with pytest.raises(ModelFormatError, match=told):
        draft_size(tmp_path, tiny_config(), "float32", shares_lane=False)
