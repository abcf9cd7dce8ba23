"""Converts the default model's GGUF file into a Hugging Face model folder; the caller has checked the file's hash.

The dequantised weights are rounded to bfloat16 once; every method, baseline and dtype starts from these.
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

from decoding.errors import ModelFetchError
from runtime.models.config import ModelConfig, decoder_tensors

_CONTROL_TOKEN = 3
"""`tokenizer.ggml.token_type` of a special token (llama.cpp, LLAMA_TOKEN_TYPE_CONTROL)."""


def convert_gguf(source: Path, folder: Path, report_share: Callable[[float], None]) -> None:
    """Write the Llama model of a GGUF file into an existing folder; raise `ModelFetchError` if that fails."""
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(fields, is_head_tied="output.weight" not in tensors)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _special_ids(fields) | {"do_sample": False})
    _write_tokenizer(fields, folder)
    names = [name for names in decoder_tensors(ModelConfig.from_hf(config)).values() for name in names]
    theirs = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    converted = {}
    for index, name in enumerate(names):
        tensor = tensors[theirs.get_name(name, try_suffixes=(".weight",)) or name]
        weight = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)  # a copy: writable
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if part in name:
                weight = unpermute_rotary(weight, config[heads])
        converted[name] = torch.from_numpy(weight).to(torch.bfloat16)
        report_share((index + 1) / len(names))
    path = folder / "model.safetensors"
    try:
        save_file(converted, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise ModelFetchError(f"{path}: cannot be written ({error})") from error


def unpermute_rotary(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Reorder rows of queries or keys [num_heads * head_dim, hidden] from GGUF's pairs to Hugging Face's two halves."""
    num_rows, hidden = weight.shape
    pairs = weight.reshape(num_heads, num_rows // num_heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(num_rows, hidden)


def _config(fields: Mapping[str, Any], *, is_head_tied: bool) -> dict[str, Any]:
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
        # undoes the rounding to float32: 1e-05, not 9.999999747378752e-06
        "rms_norm_eps": float(str(np.float32(fields["llama.attention.layer_norm_rms_epsilon"]))),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": is_head_tied,
        "torch_dtype": "bfloat16",
        **_special_ids(fields),
    }


def _special_ids(fields: Mapping[str, Any]) -> dict[str, int]:
    kinds = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {f"{name}_token_id": fields[f"tokenizer.ggml.{theirs}_token_id"] for name, theirs in kinds.items()}


def _write_tokenizer(fields: Mapping[str, Any], folder: Path) -> None:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        token for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == _CONTROL_TOKEN
    ]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
        **{key.removesuffix("_id"): tokens[index] for key, index in _special_ids(fields).items()},
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
