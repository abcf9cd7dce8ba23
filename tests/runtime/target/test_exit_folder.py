import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from decoding.errors import ModelError, ModelFormatError
from runtime.drafters.language_model.folder import load_draft
from runtime.models.decoder import Decoder
from runtime.target.exit_folder import ExitHeads, load_exits, save_exits
from tests.tiny_models import tiny_adapters, tiny_target


@pytest.fixture
def target() -> Decoder:
    return tiny_target()


@pytest.fixture
def exits(target: Decoder) -> ExitHeads:
    return ExitHeads(adapters=tiny_adapters(target, (3, 1)), kept_ids=torch.tensor([0, 1, 5, 9, 60]))


@pytest.fixture
def folder(exits: ExitHeads, target: Decoder, tmp_path: Path) -> Path:
    save_exits(exits, tmp_path / "exits", target=target, target_name="tiny-target", metadata={"tokens": 10})
    return tmp_path / "exits"


def test_adapters_come_back_by_layer_up_to_rounding(folder, exits, target) -> None:
    loaded = load_exits(folder, target, dtype=torch.float32)
    assert sorted(loaded.adapters) == [1, 3]
    assert loaded.kept_ids.tolist() == [0, 1, 5, 9, 60]
    x = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(0))
    for layer, adapter in exits.adapters.items():
        assert torch.allclose(loaded.adapters[layer](x), adapter(x), atol=0.05)
        assert not torch.equal(loaded.adapters[layer](x), adapter(x))


def test_affine_maps_are_kept_in_bfloat16(folder) -> None:
    tensors = load_file(folder / "model.safetensors")
    assert tensors["3.affine.weight"].dtype == torch.bfloat16
    assert tensors["3.up.weight"].dtype == torch.int8


def test_adapters_can_be_loaded_in_the_dtype_of_their_target(folder, target) -> None:
    loaded = load_exits(folder, target.to(torch.bfloat16), dtype=torch.bfloat16)
    x = torch.randn(1, 2, 16, dtype=torch.bfloat16)
    assert loaded.adapters[1](x).dtype == torch.bfloat16


def test_the_config_names_the_layers_and_how_they_were_trained(folder) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["exit_layers"] == [1, 3]
    assert config["metadata"] == {"tokens": 10}


def test_a_target_with_too_few_layers_is_refused(folder) -> None:
    with pytest.raises(ModelError, match=r"exit_layers 3 is outside the target's layers 1\.\.2"):
        load_exits(folder, tiny_target(num_layers=2, seed=0), dtype=torch.float32)


def test_another_target_is_refused(folder) -> None:
    with pytest.raises(ModelError, match="was trained for tiny-target"):
        load_exits(folder, tiny_target(seed=4), dtype=torch.float32)


def test_exits_are_no_draft(folder, target) -> None:
    with pytest.raises(ModelFormatError, match="found 'mirrorsd_exits'"):
        load_draft(folder, target, dtype=torch.float32)
