"""How long prompts are: by the target's tokenizer, or by their characters where random weights have none."""

import json

import pytest

from calibrate.prompts import Prompt, bundled_prompts
from decoding.errors import ModelError, ModelFormatError
from mirrorsd.model_pair import find_pair
from mirrorsd.prompt_tokens import encode, num_tokens

PROMPTS = [Prompt(prompt_id=text, category="", turns=(text,)) for text in ("w1 w2 w3", "w4", "")]


def test_random_weights_have_no_tokenizer_and_no_prompt_is_empty(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MIRRORSD_CACHE", str(tmp_path))
    pair = find_pair("shape:smollm2-135m", drafter="none", heads=())
    assert num_tokens(PROMPTS, pair.target_folder) == (2, 1, 1)
    with pytest.raises(ModelError, match=r"shape-smollm2-135m-\w+ has random weights and reads no prompts: .*--rates"):
        encode(PROMPTS, pair.target_folder)


def test_characters_tell_about_as_much_as_the_embedded_models_tokenizer(embedded_model_folder) -> None:
    prompts = bundled_prompts()
    counted = sum(num_tokens(prompts, embedded_model_folder))
    assert sum(len(prompt.text) for prompt in prompts) / counted == pytest.approx(3, rel=0.02)


def test_a_model_that_lost_its_tokenizer_is_refused(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ModelFormatError):
        num_tokens(PROMPTS, tmp_path)
