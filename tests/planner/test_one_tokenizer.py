import pytest

from decoding.errors import PlanError
from hwprofiles.model_shape import model_shape, shape_from_hf, shipped_models
from hwprofiles.models.hf_shape import TOKENIZERS
from planner.one_tokenizer import require_one_tokenizer, tokenizer_is_assumed

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
}


def described(model_type, vocab_size):
    return shape_from_hf(SIZES | {"model_type": model_type, "vocab_size": vocab_size})


def test_every_shipped_shape_says_whose_tokenizer_it_has():
    """But for two, which have vocabularies of others' sizes: what is not known is not told apart."""
    unknown = [name for name in shipped_models() if model_shape(name).tokenizer is None]
    assert unknown == ["deepseek-v4-flash", "glm-4.7-flash"]
    sizes = {model_shape(name).vocab_size for name in unknown}
    assert sizes == {model_shape("deepseek-v3").vocab_size, model_shape("glm-5.2").vocab_size}
    with pytest.raises(PlanError, match="the tokenizers are qwen-2 and qwen-3.5"):
        require_one_tokenizer(model_shape("qwen3.8-27b"), model_shape("qwen3-0.6b"))


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        (described("qwen2", 152064), model_shape("qwen3-0.6b")),
        (described("qwen3_moe", 151936), described("qwen2", 152064)),
        (described("llama", 128256), model_shape("llama-3.2-1b")),
        (described("gemma3_text", 262208), described("gemma3_text", 262144)),
        (described("opt", 50272), model_shape("opt-125m")),
        (model_shape("deepseek-coder-33b"), model_shape("deepseek-coder-6.7b-instruct")),
        (model_shape("openlm-research/OpenLLaMA-13B"), model_shape("openllama-3b")),
        (model_shape("deepseek-coder-6.7b"), model_shape("deepseek-coder-1.3b")),
    ],
)
def test_one_tokenizer_pairs_however_its_vocabulary_is_padded(target, draft):
    require_one_tokenizer(target, draft)
    assert not tokenizer_is_assumed(target, draft)


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        (model_shape("llama-3.1-8b"), model_shape("qwen3-0.6b")),
        (described("gemma3_text", 262144), model_shape("qwen3-0.6b")),
        (described("gpt_oss", 201088), model_shape("qwen3-0.6b")),
        (model_shape("mistral-small-24b"), described("falcon", 131072 + 256)),
        (described("gemma2", 256000), described("gemma3_text", 262144)),
        (model_shape("opt-66b"), described("gpt2", 50257 + 1000)),
        (model_shape("openllama-7b"), model_shape("llama-68m")),
    ],
)
def test_another_tokenizer_does_not(target, draft):
    with pytest.raises(PlanError, match="cannot draft for"):
        require_one_tokenizer(target, draft)


def test_where_nobody_says_whose_it_is_the_sizes_of_the_vocabularies_are_compared():
    mine = described("mine", 32000)
    require_one_tokenizer(mine, described("mine", 32064))
    assert tokenizer_is_assumed(mine, described("mine", 32064))
    with pytest.raises(PlanError, match=r"vocabularies have 33,000 and 32,000 tokens"):
        require_one_tokenizer(mine, described("mine", 33000))


def test_a_refusal_names_shapes_that_can():
    with pytest.raises(PlanError, match=r"models that can: llama-3\.2-1b, llama-3\.2-3b$"):
        require_one_tokenizer(model_shape("llama-3.1-8b"), model_shape("opt-125m"))


def test_no_kind_and_size_stands_for_two_tokenizers():
    for name, (start, sizes) in TOKENIZERS.items():
        for size in sizes:
            assert described(start, size).tokenizer == name
