"""Bytes that parts read are those that their weights and keys and values have."""

from dataclasses import replace

import pytest

from calibrate.profiling.model_sizes import ModelSizes
from decoding.errors import ModelError, ModelFormatError
from runtime.drafters.language_model.folder import load_draft
from runtime.models.kv_cache import KVCache
from runtime.target.early_exits import load_exits
from tests.runtime.tiny_folders import save_draft_of, save_exits_of
from tests.tiny_models import tiny_target

CONTEXT = 64


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def folders(target, tmp_path_factory):
    """Folders of a draft with features and of exits."""
    root = tmp_path_factory.mktemp("sizes")
    return save_draft_of(target, root / "draft", exit_features=(1, 2)), save_exits_of(target, root / "exits")


@pytest.fixture(scope="module")
def sizes(target, folders):
    return ModelSizes.of(target.config, *folders, "float32")


def matrix_bytes(module) -> int:
    return sum(weight.nbytes for weight in module.parameters() if weight.dim() == 2)


def test_a_layer_reads_its_matrices_and_the_keys_and_values_of_the_context(target, sizes):
    layer = target.layers[0]
    cached = KVCache(replace(target.config, num_layers=1), CONTEXT, dtype=layer.down.weight.dtype)
    cache_bytes = cached.memory.slots.nbytes
    assert sizes.part_bytes(CONTEXT)["layer"] == matrix_bytes(layer) + cache_bytes
    assert sizes.part_bytes(0)["layer"] == matrix_bytes(layer)


def test_a_draft_step_reads_its_layers_and_the_head_rows_it_keeps(target, folders, sizes):
    draft = load_draft(folders[0], target, dtype=target.embedding.weight.dtype)
    layers = sum(matrix_bytes(layer) for layer in draft.decoder.layers)
    assert sizes.part_bytes(0)["draft_step"] == layers + draft.decoder.lm_head.weight.nbytes


def test_an_exit_reads_its_adapter_and_the_head_rows_it_keeps(target, folders, sizes):
    exits = load_exits(folders[1], target, dtype=target.embedding.weight.dtype)
    head_rows = target.lm_head.weight[exits.kept_ids].nbytes
    assert sizes.part_bytes(CONTEXT)["exit"] == matrix_bytes(exits.adapters[2]) + head_rows


def test_what_is_not_there_reads_nothing_and_a_plain_exit_reads_the_whole_head(target):
    plain = ModelSizes.of(target.config, None, None, "float32").part_bytes(CONTEXT)
    assert plain["draft_step"] == 0
    assert plain["exit"] == plain["lm_head"] == target.lm_head.weight.nbytes


def test_half_the_precision_is_half_the_bytes(sizes):
    whole, half = sizes.part_bytes(CONTEXT), replace(sizes, dtype="bfloat16").part_bytes(CONTEXT)
    assert half == {part: num_bytes / 2 for part, num_bytes in whole.items()}


@pytest.mark.parametrize(("form", "in_layers", "in_heads"), [("int8", 1, 1), ("int4", 0.5, 1)])
def test_keys_values_and_adapters_of_packed_weights_have_16_bits(target, sizes, form, in_layers, in_heads):
    """A weight of float32 is four bytes in all that is compared with."""
    packed, whole = (replace(sizes, dtype=dtype) for dtype in (form, "float32"))
    weights = whole.part_bytes(0)["layer"] / 4
    cached = whole.part_bytes(CONTEXT)["layer"] / 4 - weights
    found, head = packed.part_bytes(CONTEXT), target.lm_head.weight.numel()
    assert found["layer"] == in_layers * weights + 2 * cached
    assert found["lm_head"] == in_heads * head
    adapter = whole.part_bytes(0)["exit"] / 4 - sizes.exits.draft_vocab_size * target.config.hidden_size
    assert found["exit"] == 2 * adapter + in_heads * sizes.exits.draft_vocab_size * target.config.hidden_size
    assert found["draft_step"] == len(sizes.draft.source_layers) * found["layer"] + in_heads * head
    assert packed.features_bytes_per_row == 2 * packed.feature_width


def test_a_folder_of_something_else_is_named(target, folders, tmp_path):
    draft, exits = folders
    with pytest.raises(ModelFormatError, match=r"exits/config\.json: not the configuration of"):
        ModelSizes.of(target.config, exits, None, "float32")
    with pytest.raises(ModelFormatError, match=r"draft/config\.json: not the configuration of"):
        ModelSizes.of(target.config, None, draft, "float32")
    with pytest.raises(ModelError, match=r"nowhere/config\.json: no such file"):
        ModelSizes.of(target.config, tmp_path / "nowhere", None, "float32")
