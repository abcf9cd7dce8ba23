"""Our decoder says what Hugging Face transformers says, for every family it claims to read."""

import json

import pytest
import torch

from decoding.messages import NO_WINDOW
from decoding.sequence import DecodedSequence
from runtime.models.decoder import load_decoder
from runtime.models.tokenizer import Tokenizer
from runtime.target.target_model import TargetModel
from tests.runtime import plain
from tests.tiny_models import tiny_target

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 5000.0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "llama, tied, own head size": ("LlamaConfig", {"tie_word_embeddings": True, "head_dim": 16}),
    "llama, biased": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama 3.1": ("LlamaConfig", {"rope_parameters": LLAMA3_ROPE}),
    "llama, scaled by 1": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "factor": 1.0, "rope_theta": 5000.0}},
    ),
    "mistral": ("MistralConfig", {"sliding_window": None, "head_dim": 8}),
    "mistral, sliding window": ("MistralConfig", {"sliding_window": 40, "head_dim": 8}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "opt": ("OPTConfig", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "opt, own head": ("OPTConfig", {"ffn_dim": 40, "word_embed_proj_dim": 32, "tie_word_embeddings": False}),
}
IDS = [(13 * place + 5) % 97 for place in range(40)]


@pytest.fixture(scope="module", params=FAMILIES)
def reference(request, tmp_path_factory):
    """A random model of a family, and its folder as transformers writes it."""
    transformers = pytest.importorskip("transformers")
    name, options = FAMILIES[request.param]
    torch.manual_seed(0)
    others = {"rope_theta", "num_key_value_heads", "intermediate_size"} if name == "OPTConfig" else {"rope_theta"}
    sizes = {key: value for key, value in SIZES.items() if key not in {*options, *others}}
    rope = (
        {}
        if "rope_parameters" in options or name == "OPTConfig"
        else {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    )
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**sizes, **rope, **options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3) if parameter.dim() == 2 else parameter.add_(torch.randn_like(parameter) * 0.2)
    folder = tmp_path_factory.mktemp("reference")
    model.eval().save_pretrained(folder)
    return model, folder


def test_logits_agree(reference):
    model, folder = reference
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0]
        found = plain.target_logits(load_decoder(folder, dtype=torch.float32), IDS)
    assert (found - expected).abs().max() < 1e-4
    assert expected.std() > 0.5


def test_cached_decoding_agrees(reference):
    """Prefill and then one token at a time, against the whole text at once."""
    model, folder = reference
    target = TargetModel.of(load_decoder(folder, dtype=torch.float32))
    target.prefill(IDS[:10], capacity=60)
    tokens = [target.verify(NO_WINDOW).next_token for _ in range(30)]
    with torch.inference_mode():
        logits = model(torch.tensor([[*IDS[:10], *tokens]])).logits[0]
    assert tokens == logits.argmax(-1).tolist()[9:-1]


@pytest.mark.parametrize(
    ("in_config", "in_generation", "end"),
    [(-1, None, 30), (None, -1, 30), ([-1, 7], None, 8), (None, [5, 7], 6), (7, [11, 9], 10), (7, -1, 30)],
)
def test_texts_end_where_they_do_in_transformers(tmp_path, in_config, in_generation, end):
    """EOS ids are named by the place at which their token first comes in the text that none ends; -1 is no id."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, eos_token_id=None))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_()
    model.eval().save_pretrained(tmp_path)
    config, generation = tmp_path / "config.json", tmp_path / "generation_config.json"
    generation.unlink()
    whole = text_of(tmp_path)
    assert len({*whole[:12]}) == 12, "so that a place says which token ends the text"

    def named(places):
        if isinstance(places, list):
            return [named(one) for one in places]
        return places if places in (None, -1) else whole[places]

    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token_id": named(in_config)}))
    if in_generation is not None:
        generation.write_text(json.dumps({"eos_token_id": named(in_generation)}))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.tensor([IDS[:10]])
    found = theirs.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False, pad_token_id=0
    )
    assert text_of(tmp_path) == found[0, 10:].tolist() == whole[:end]


def text_of(folder):
    """The greedy text of a folder's model, as long as its EOS ids let it be."""
    target = TargetModel.of(load_decoder(folder, dtype=torch.float32))
    sequence = DecodedSequence(IDS[:10], max_new_tokens=30, eos_token_ids=target.config.eos_token_ids)
    target.prefill(IDS[:10], capacity=60)
    while sequence.unfinished:
        sequence.commit(NO_WINDOW, target.verify(NO_WINDOW))
    return sequence.tokens


PROMPTS = ["What is the capital of France?", "Who would want an honest answer?", "How do I explain winter?"]


def test_the_embedded_model_writes_what_transformers_writes(embedded_model_folder):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(embedded_model_folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_folder(embedded_model_folder)
    target, answers = TargetModel.of(load_decoder(embedded_model_folder, dtype=torch.float32)), []
    for prompt in PROMPTS:
        ids = tokenizer.encode_chat([{"role": "user", "content": prompt}])
        target.prefill(ids, capacity=len(ids) + 16)
        tokens = [target.verify(NO_WINDOW).next_token for _ in range(12)]
        with torch.inference_mode():
            logits = model(torch.tensor([[*ids, *tokens]])).logits[0]
        assert tokens == logits.argmax(-1).tolist()[len(ids) - 1 : -1], prompt
        answers.append(tokenizer.decode(tokens))
    assert answers[0].startswith("The capital of France is Paris"), "it was converted as it should be"


def test_norms_of_queries_and_keys_take_the_dtype_of_training():
    """Torch warns of a norm whose weight has another dtype, and computes it in steps."""
    layer = tiny_target(qk_norm=True).layers[0]
    x_TD = torch.ones(2, layer.config.hidden_size)
    turned = torch.ones(2, 1, layer.config.head_dim)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer.project(x_TD, (turned, turned))
    finally:
        torch.set_warn_always(always)
