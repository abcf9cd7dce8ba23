"""A GGUF file becomes the Hugging Face folder that it was made from."""

import json

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from runtime.models.gguf_convert import convert_gguf


def convert(content, tmp_path):
    folder = tmp_path / "converted"
    folder.mkdir()
    convert_gguf(content.write(tmp_path / "model.gguf"), folder, lambda _share: None)
    return folder


def test_converted_model_computes_what_the_original_computes(transformers, tiny_gguf, tmp_path):
    original = _random_llama(transformers, tiny_gguf)
    _put_into(tiny_gguf, original)
    converted = transformers.AutoModelForCausalLM.from_pretrained(convert(tiny_gguf, tmp_path), dtype=torch.float32)
    ids = torch.arange(20)[None]
    assert torch.equal(converted(ids).logits, original(ids).logits)


def test_quantised_weights_are_dequantised_then_rounded_to_bfloat16(tiny_gguf, tmp_path):
    name = "blk.0.ffn_up.weight"
    tiny_gguf.quantisation[name] = kind = gguf.GGMLQuantizationType.Q4_1
    packed = gguf.quants.quantize(tiny_gguf.weights[name], kind)
    tensors = load_file(convert(tiny_gguf, tmp_path) / "model.safetensors")
    expected = torch.from_numpy(gguf.quants.dequantize(packed, kind)).bfloat16()
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert torch.equal(tensors["model.layers.0.mlp.up_proj.weight"], expected)


def test_an_output_head_of_its_own_is_kept(tiny_gguf, tmp_path):
    tiny_gguf.weights["output.weight"] = 2 * tiny_gguf.weights["token_embd.weight"]
    folder = convert(tiny_gguf, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
    assert torch.equal(tensors["lm_head.weight"], 2 * tensors["model.embed_tokens.weight"])


def test_tokenizer_merges_splits_digits_and_knows_special_tokens(transformers, tiny_gguf, tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(convert(tiny_gguf, tmp_path))
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("<|im_start|>hello w42")["input_ids"])
    assert tokens == ["<|im_start|>", "hello", "Ġw", "4", "2"]
    assert tokenizer.eos_token == "<|im_end|>"


def _random_llama(transformers, content):
    """A float32 model whose weights are numbers that bfloat16 can hold."""
    fields = content.fields
    config = transformers.LlamaConfig(
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        rope_theta=fields["llama.rope.freq_base"],
        tie_word_embeddings=True,
    )
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return model


def _put_into(content, model):
    """Replace the weights by the model's, query and key rows permuted as llama.cpp's converter does it."""
    theirs = {"attn_norm": "input_layernorm", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm"}
    theirs |= {f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"}
    theirs |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    content.weights["token_embd.weight"] = state["model.embed_tokens.weight"]
    content.weights["output_norm.weight"] = state["model.norm.weight"]
    for layer in range(model.config.num_hidden_layers):
        for ours, name in theirs.items():
            weight = state[f"model.layers.{layer}.{name}.weight"]
            heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
            if ours in heads:
                weight = _llama_cpp_permute(weight, heads[ours])
            content.weights[f"blk.{layer}.{ours}.weight"] = weight


def _llama_cpp_permute(weight, num_heads):
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    rows, hidden = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, hidden)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, hidden))
