"""A config that is damaged is refused field by field, before anything is built from it."""

import json

import pytest

from decoding.errors import MOST_CHARACTERS, ModelError
from runtime.models.config import Llama3Rope, ModelConfig
from runtime.models.hf_config import MARK, unheeded

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


OPT = {
    "architectures": ["OPTForCausalLM"],
    "activation_function": "relu",
    "vocab_size": 61,
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "ffn_dim": 24,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "word_embed_proj_dim": 32,
    "do_layer_norm_before": True,
}


@pytest.mark.parametrize("name", sorted(set(LLAMA) - {"architectures"}))
@pytest.mark.parametrize("value", [None, "32", [32], {}, True, 0, -1, 10**30, float("1e300"), 2.5])
def test_every_field_has_its_type_and_its_range(name, value):
    if name == "rms_norm_eps" and value == 0:
        assert ModelConfig.from_hf(LLAMA | {name: value}, source="my.json").norm_eps == 0
        return
    with pytest.raises(ModelError, match=rf"my\.json: {name}: Input should") as caught:
        ModelConfig.from_hf(LLAMA | {name: value}, source="my.json")
    assert len(str(caught.value)) <= MOST_CHARACTERS


@pytest.mark.parametrize("name", sorted(set(LLAMA) - {"architectures"}))
def test_what_is_missing_is_named(name):
    with pytest.raises(ModelError, match=rf"my\.json: {name}: Field required"):
        ModelConfig.from_hf({key: value for key, value in LLAMA.items() if key != name}, source="my.json")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"architectures": "LlamaForCausalLM"}, "architectures: "),
        ({"architectures": []}, r"architecture '\(none\)' is not supported"),
        ({"head_dim": 7}, "head_dim is 7: rotary embeddings need an even one"),
        ({"num_attention_heads": 64}, "head_dim is 0: "),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple"),
        ({"eos_token_id": ["2"]}, "eos_token_id"),
        ({"rope_theta": -1.0}, "rope_theta: "),
        ({"rope_scaling": 3}, "rope_scaling: "),
        ({"rope_scaling": LLAMA3 | {"factor": None}}, "rope_scaling of type .llama3. needs factor"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "rope_scaling has low_freq_factor 4.0, not below"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling.*: Input should be 'default', 'linear' or 'llama3', f"),
        (
            {"rope_scaling": {"type": "linear", "factor": 4.0}},
            "rope_scaling of type 'linear' has factor 4.0; only 1 is",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling of type 'linear' has factor None"),
        ({"quantization_config": ["x" * 10_000]}, "quantization_config: .*weights quantized by "),
        (
            {"compression_config": {"quant_method": "fp8"}},
            "compression_config: .*quantized by fp8 are not read",
        ),
        *(
            ({"rope_parameters": one, "rope_scaling": other, "rope_theta": 1e4}, "rope_scaling and rope_parameters ask")
            for one, other in (
                ({"rope_type": "default"}, LLAMA3),
                (LLAMA3, LLAMA3 | {"factor": 4.0}),
                (LLAMA3 | {"rope_theta": 5e5}, LLAMA3),
            )
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters: .*full_attention.* not read"),
    ],
)
def test_what_cannot_be_is_refused(changes, complaint):
    with pytest.raises(ModelError, match=rf"my\.json: {complaint}") as caught:
        ModelConfig.from_hf(LLAMA | changes, source="my.json")
    assert len(str(caught.value)) <= MOST_CHARACTERS


def test_what_others_write_for_nothing_is_nothing():
    absent = dict.fromkeys(("num_key_value_heads", "head_dim", "rope_scaling", "sliding_window", "eos_token_id"))
    found = ModelConfig.from_hf(LLAMA | absent | {"attention_bias": None, "rope_theta": 500_000, "unknown": {}})
    assert (found.num_kv_heads, found.head_dim, found.rope_theta, found.rope_scaling) == (4, 8, 500_000.0, None)
    assert found.eos_token_ids == ()
    assert ModelConfig.from_hf(LLAMA | {"rope_scaling": {"type": "linear", "factor": 1.0}}).rope_scaling is None
    assert [ModelConfig.from_hf(LLAMA | {"eos_token_id": ids}).eos_token_ids for ids in (-1, [-1, 7])] == [(), (7,)]


@pytest.mark.parametrize("has_config", [False, True])
def test_an_adapter_that_would_not_be_applied_is_refused(tmp_path, has_config):
    path = tmp_path / "adapter_config.json"
    path.write_text('{"peft_type": "LORA", "base_model_name_or_path": "owner/base"}')
    if has_config:
        (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(ModelError) as refused:
        ModelConfig.from_folder(tmp_path)
    assert str(refused.value).startswith(f"{path}: is of an adapter (PEFT), which is not applied; merge it into its")


def test_an_opt_config_says_what_is_other_about_it():
    found = ModelConfig.from_hf(OPT)
    assert (found.positions, found.norm, found.mlp) == ("learned", "layer", "relu")
    assert (found.intermediate_size, found.num_kv_heads, found.head_dim) == (24, 4, 8)
    assert found.tie_embeddings
    assert not ModelConfig.from_hf(OPT | {"tie_word_embeddings": False}).tie_embeddings
    assert (found.attention_bias, found.attention_out_bias, found.mlp_bias) == (True, True, True)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"word_embed_proj_dim": 16}, "word_embed_proj_dim 16 is not hidden_size 32"),
        ({"do_layer_norm_before": False}, "do_layer_norm_before: Input should be True, found False"),
        ({"_remove_final_layer_norm": True}, "_remove_final_layer_norm: Input should be False"),
        ({"activation_function": "gelu"}, "activation_function: Input should be 'relu', found 'gelu'"),
        ({"num_attention_heads": 5}, "hidden_size 32 is not a multiple of num_attention_heads 5"),
    ],
)
def test_variants_of_opt_that_are_not_supported_are_named(changes, complaint):
    with pytest.raises(ModelError, match=rf"my\.json: {complaint}"):
        ModelConfig.from_hf(OPT | changes, source="my.json")


def test_a_sliding_window_bounds_the_text():
    """A text that fits into the window is seen whole, so that full attention is right for it."""
    mistral = LLAMA | {"architectures": ["MistralForCausalLM"]}
    bound = ModelConfig.from_hf(mistral | {"sliding_window": 24})
    assert bound.max_position == 24
    assert bound.most_positions == "24 (its sliding window; longer texts are not supported)"
    assert ModelConfig.from_hf(mistral | {"sliding_window": 4096}).max_position == 128
    assert ModelConfig.from_hf(mistral | {"sliding_window": None}).most_positions == "128"
    qwen = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 24}
    assert ModelConfig.from_hf(qwen | {"use_sliding_window": True}).max_position == 24
    assert ModelConfig.from_hf(qwen | {"use_sliding_window": False}).max_position == 128
    assert ModelConfig.from_hf(LLAMA | {"sliding_window": 24}).max_position == 128
    assert ModelConfig.from_hf(LLAMA | {"sliding_window": -1}).max_position == 128, "a Llama does not read it"
    with pytest.raises(ModelError, match=r"my\.json: its layers slide, but sliding_window is -1"):
        ModelConfig.from_hf(mistral | {"sliding_window": -1}, source="my.json")
    with pytest.raises(ModelError, match=r"my\.json: use_sliding_window is true, but sliding_window is None"):
        ModelConfig.from_hf(qwen | {"use_sliding_window": True, "sliding_window": None}, source="my.json")


@pytest.mark.parametrize("architecture", ["Llama", "Mistral", "Qwen2", "Qwen3", "OPT"])
@pytest.mark.parametrize("fields", [{}, {"sliding_window": None, "eos_token_id": None}])
def test_a_file_without_a_field_has_what_it_has_in_transformers(transformers, tmp_path, architecture, fields):
    own = OPT if architecture == "OPT" else LLAMA | {"max_position_embeddings": 32768}
    raw = own | {"architectures": [f"{architecture}ForCausalLM"], "model_type": architecture.lower()} | fields
    (tmp_path / "config.json").write_text(json.dumps(raw))
    theirs, found = transformers.AutoConfig.from_pretrained(tmp_path), ModelConfig.from_folder(tmp_path)
    window = theirs.sliding_window if architecture == "Mistral" else None
    assert found.is_window == (window is not None)
    assert found.max_position == (window or raw["max_position_embeddings"])
    assert found.eos_token_ids == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))


def test_what_is_made_of_parts_of_a_llama_refuses_others():
    ModelConfig.from_hf(LLAMA).require_rotary("heads")
    with pytest.raises(ModelError, match=r"heads: made for targets with rotary positions.* not for OPTForCausalLM"):
        ModelConfig.from_hf(OPT).require_rotary("heads")


def test_both_places_of_the_scaling_are_read():
    scaled = Llama3Rope(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=64)
    assert ModelConfig.from_hf(LLAMA | {"rope_scaling": LLAMA3}).rope_scaling == scaled
    newer = ModelConfig.from_hf(LLAMA | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}})
    assert (newer.rope_scaling, newer.rope_theta) == (scaled, 5e5)
    both = ModelConfig.from_hf(LLAMA | {"rope_parameters": {"rope_theta": 5e5}, "rope_theta": 1e4})
    assert both.rope_theta == 5e5, "as transformers reads it"
    for newer, older in (({}, LLAMA3), (LLAMA3, {}), (LLAMA3, LLAMA3), (LLAMA3 | {"rope_theta": 5e5}, LLAMA3)):
        twice = {"rope_parameters": newer, "rope_scaling": older, "rope_theta": 5e5}
        assert (ModelConfig.from_hf(LLAMA | twice).rope_scaling, newer) == (scaled, newer)


@pytest.mark.parametrize(("algorithm", "is_refused"), [("FP8", True), (None, False)])
def test_what_modelopt_says_of_its_weights_is_read(tmp_path, algorithm, is_refused):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    path = tmp_path / "hf_quant_config.json"
    path.write_text(json.dumps({"quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8"}}))
    if is_refused:
        with pytest.raises(ModelError, match=rf"{path.name}: weights quantized by FP8 are not read; name the model's"):
            ModelConfig.from_folder(tmp_path)
    else:
        ModelConfig.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("[" * 100_000, "not valid JSON .nested too deep"), ("[1]", "expected a JSON object"), ('{"a": NaN}', "NaN")],
)
def test_a_file_that_is_no_object_is_refused(tmp_path, content, complaint):
    for name in ("config.json", "generation_config.json"):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA))
        (tmp_path / name).write_text(content)
        with pytest.raises(ModelError, match=f"{name}: .*{complaint}"):
            ModelConfig.from_folder(tmp_path)


PENALTIES = {"repetition_penalty": 1.05, "no_repeat_ngram_size": 3, "suppress_tokens": [7], "forced_bos_token_id": 0}
NOTHING = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "suppress_tokens": [],
    "forced_bos_token_id": None,
    "top_k": 0,
    "top_p": 1.0,
    "do_sample": True,
    "temperature": 0.7,
    "eos_token_id": [2],
}


def test_what_a_folder_asks_of_texts_and_no_run_applies_is_told_by_file_name_and_value(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"eos_token_id": 2}))
    assert unheeded(tmp_path) is None
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(NOTHING))
    assert unheeded(tmp_path) is unheeded(tmp_path, 0.7) is None
    path.write_text(json.dumps(PENALTIES | {"top_p": 0.8}))
    asked = "repetition_penalty 1.05, no_repeat_ngram_size 3, suppress_tokens [7], forced_bos_token_id 0"
    assert unheeded(tmp_path).startswith(f"{path} asks for {asked}, which is not applied")
    assert "top_p 0.8, which is not applied" in unheeded(tmp_path, 0.7)
    path.write_text(json.dumps({"top_k": -1, "eta_cutoff": 0.0003}))
    assert f"{path} asks for eta_cutoff 0.0003, which is not applied" in unheeded(tmp_path, 0.7), "-1 is no top_k"


@pytest.mark.parametrize("fields", [{}, {"eos_token_id": None}, {"eos_token_id": []}, {"eos_token_id": -1}])
def test_a_model_of_which_no_file_says_what_ends_a_text_is_told(tmp_path, fields):
    qwen = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(qwen | {MARK: 0}))
    assert unheeded(tmp_path) is None, "texts of random weights mean nothing"
    (tmp_path / "config.json").write_text(json.dumps(qwen | fields))
    told = f"{tmp_path / 'config.json'} and generation_config.json name no token as eos_token_id: every text is"
    assert unheeded(tmp_path).startswith(told)
    (tmp_path / "generation_config.json").write_text(json.dumps(PENALTIES))
    assert told in unheeded(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 2}')
    assert unheeded(tmp_path) is None
