"""Turn a GGUF file of the Llama architecture into a Hugging Face model folder.

The dequantised weights are rounded to bfloat16 once: these are "the model" for every method, baseline and dtype.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from decoding.errors import ModelFetchError, ModelFormatError, UnsupportedModelError

_UNTIED_HEAD = "output.weight"
_CONTROL_TOKEN = 3
"""`tokenizer.ggml.token_type` of a special token (llama.cpp, LLAMA_TOKEN_TYPE_CONTROL)."""


def convert_gguf(source: Path, folder: Path, report_share: Callable[[float], None]) -> None:
    """Write the model in the GGUF file `source` into the existing `folder`, reporting the share of weights converted.

    Raises `ModelFormatError` for a damaged file or a wrong field or tensor, `UnsupportedModelError` for another
    architecture or tokenizer, `ModelFetchError` if the weights cannot be written.
    """
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise ModelFormatError(f"{source}: not a readable GGUF file, or cut short ({error})") from error
    fields = _Fields(reader, source)
    fields.require("general.architecture", "llama")
    fields.require("tokenizer.ggml.model", "gpt2")
    fields.require("tokenizer.ggml.pre", "smollm")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(fields, is_head_tied=_UNTIED_HEAD not in tensors)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _special_ids(fields) | {"do_sample": False})
    _write_tokenizer(fields, folder)
    _write_weights(tensors, config, source, folder / "model.safetensors", report_share)


def unpermute_rotary(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Return query or key rows [num_heads * head_dim, hidden] in Hugging Face's two halves from interleaved pairs."""
    num_rows, hidden = weight.shape
    pairs = weight.reshape(num_heads, num_rows // num_heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(num_rows, hidden)


class _Fields:
    def __init__(self, reader: gguf.GGUFReader, source: Path) -> None:
        self._reader, self._source = reader, source

    def __getitem__(self, key: str) -> Any:
        field = self._reader.get_field(key)
        if field is None:
            raise ModelFormatError(f"{self._source}: the GGUF field {key!r} is missing")
        return field.contents()

    def require(self, key: str, supported: str) -> None:
        found = self[key]
        if found != supported:
            raise UnsupportedModelError(f"{self._source}: {key} is {found!r}; supported: {supported!r}")


def _config(fields: _Fields, *, is_head_tied: bool) -> dict[str, Any]:
    hidden_size, num_heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": fields["llama.block_count"],
        "hidden_size": hidden_size,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden_size // num_heads,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "max_position_embeddings": fields["llama.context_length"],
        "rope_theta": fields["llama.rope.freq_base"],
        # as it was before float32 storage widened it: 1e-05, not 9.999999747378752e-06
        "rms_norm_eps": float(str(np.float32(fields["llama.attention.layer_norm_rms_epsilon"]))),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": is_head_tied,
        "torch_dtype": "bfloat16",
        **_special_ids(fields),
    }


def _special_ids(fields: _Fields) -> dict[str, int]:
    return {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def _write_tokenizer(fields: _Fields, folder: Path) -> None:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    try:
        model = models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges)
    except Exception as error:  # tokenizers raises no narrower class
        raise ModelFormatError(f"vocabulary and merges of the GGUF file do not match: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": fields["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "chat_template": fields["tokenizer.chat_template"],
            **{key.removesuffix("_id"): tokens[index] for key, index in _special_ids(fields).items()},
        },
    )


def _write_weights(
    tensors: Mapping[str, gguf.ReaderTensor],
    config: Mapping[str, Any],
    source: Path,
    path: Path,
    report_share: Callable[[float], None],
) -> None:
    shapes = _tensor_shapes(config)
    converted: dict[str, torch.Tensor] = {}
    for index, (name, (hf_name, shape)) in enumerate(shapes.items()):
        weight = _dequantise(tensors, name, shape, source)
        if name.endswith("attn_q.weight"):
            weight = unpermute_rotary(weight, config["num_attention_heads"])
        elif name.endswith("attn_k.weight"):
            weight = unpermute_rotary(weight, config["num_key_value_heads"])
        converted[hf_name] = torch.from_numpy(weight).to(torch.bfloat16)
        report_share((index + 1) / len(shapes))
    try:
        save_file(converted, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise ModelFetchError(f"{path}: cannot be written ({error})") from error


def _tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[str, list[int]]]:
    hidden, feed_forward, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    query, kv = (config["head_dim"] * config[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
    layer_tensors = {
        "attn_norm": ("input_layernorm", [hidden]),
        "attn_q": ("self_attn.q_proj", [query, hidden]),
        "attn_k": ("self_attn.k_proj", [kv, hidden]),
        "attn_v": ("self_attn.v_proj", [kv, hidden]),
        "attn_output": ("self_attn.o_proj", [hidden, query]),
        "ffn_norm": ("post_attention_layernorm", [hidden]),
        "ffn_gate": ("mlp.gate_proj", [feed_forward, hidden]),
        "ffn_up": ("mlp.up_proj", [feed_forward, hidden]),
        "ffn_down": ("mlp.down_proj", [hidden, feed_forward]),
    }
    shapes = {"token_embd.weight": ("model.embed_tokens.weight", [vocab, hidden])}
    for layer in range(config["num_hidden_layers"]):
        for name, (hf_name, shape) in layer_tensors.items():
            shapes[f"blk.{layer}.{name}.weight"] = (f"model.layers.{layer}.{hf_name}.weight", shape)
    shapes["output_norm.weight"] = ("model.norm.weight", [hidden])
    if not config["tie_word_embeddings"]:
        shapes[_UNTIED_HEAD] = ("lm_head.weight", [vocab, hidden])
    return shapes


def _dequantise(
    tensors: Mapping[str, gguf.ReaderTensor], name: str, shape: list[int], source: Path
) -> npt.NDArray[np.float32]:
    tensor = tensors.get(name)
    if tensor is None:
        raise ModelFormatError(f"{source}: the tensor {name!r} is missing")
    weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    if list(weight.shape) != shape:
        raise ModelFormatError(f"{source}: {name!r} has shape {list(weight.shape)}, expected {shape}")
    return np.array(weight, dtype=np.float32)  # a copy: the file behind it is mapped read-only


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
