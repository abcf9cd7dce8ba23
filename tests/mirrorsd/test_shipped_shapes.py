"""Every shape that ships is a model with random weights by its name, unless no decoder here has its parts."""

import pytest

from decoding.errors import ModelError
from hwprofiles.model_shape import model_shape, shipped_models
from mirrorsd.model_pair import find_pair
from mirrorsd.shipped_shapes import is_shipped_shape, shipped_shape_folder
from runtime.memory.model_bytes import num_parameters
from runtime.models.config import ModelConfig
from runtime.storage.shape_folder import has_random_weights


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MIRRORSD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runs(name):
    shape = model_shape(name)
    return shape.is_uniform and shape.num_tracks == 1


@pytest.mark.parametrize("name", [name for name in shipped_models() if runs(name)])
def test_its_sizes_are_those_of_the_shape(name) -> None:
    config, shape = ModelConfig.from_folder(shipped_shape_folder(f"shape:{name}")), model_shape(name)
    assert config.random_seed == 0
    assert config.num_layer_parameters == shape.layer_parameters
    assert (config.num_layers, config.max_position) == (shape.num_layers, shape.max_position)
    # norms and biases are no part of a shape
    assert num_parameters(config) == pytest.approx(shape.num_parameters, rel=1e-3)


@pytest.mark.parametrize("name", [name for name in shipped_models() if not runs(name)])
def test_parts_that_no_decoder_has_are_refused(name) -> None:
    with pytest.raises(
        ModelError, match=f"shape:{name}: a shape with (experts|layers of several kinds|parallel tracks) is simulated"
    ):
        shipped_shape_folder(f"shape:{name}")


def test_a_pair_is_found_by_names() -> None:
    pair = find_pair("shape:Qwen3-8B", drafter="shape:qwen3-0.6b", dtype="int4")
    assert (pair.target, pair.drafter.name) == ("shape:Qwen3-8B", str(pair.drafter.folder))
    assert has_random_weights(pair.target_folder)
    assert ModelConfig.from_folder(pair.target_folder).architecture == "Qwen3ForCausalLM"
    assert ModelConfig.from_folder(pair.drafter.folder).num_layers == 28


def test_a_path_of_the_users_is_meant_first(cache) -> None:
    assert is_shipped_shape("shape:qwen3-8b")
    (cache / "qwen3-8b").mkdir()
    assert not is_shipped_shape("shape:qwen3-8b")
    assert not is_shipped_shape("shape:nothing-known")
    assert not is_shipped_shape("qwen3-8b")
