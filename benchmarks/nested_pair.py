"""A target of random weights whose draft is its own first layers: a pair that agrees, without a download.

    python benchmarks/nested_pair.py out/pair --hidden 2048 --inner 8192 --layers 16
    mirrorsd demo --device cuda:0 --target out/pair/target --drafter out/pair/draft

Each later layer adds little to the hidden states, so that the draft often proposes what the target chooses; texts do
not repeat themselves, and mean nothing. Both are folders of a Hugging Face model (Llama), with the tokenizer of the
embedded model, in bfloat16. The weights are made on the GPU where there is one.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from _common import arguments
from safetensors.torch import save_file

from runtime.models.default_model import embedded_folder

_DRAFT_LAYERS = 2
_LATER_SCALE = 0.07
"""What later layers add, next to what the draft's layers add: the pair agrees on six of ten tokens."""


def main() -> None:
    """Make both folders."""
    tokenizers = (Path, "folder of a model that has one")
    parser = arguments(__doc__, hidden=2048, inner=8192, layers=16, heads=32, kv_heads=8, tokenizer=tokenizers)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    tokenizer = options.tokenizer or embedded_folder()
    config = config_of(options, json.loads((tokenizer / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    weights = random_weights(config)
    for name, num_layers in {"target": options.layers, "draft": _DRAFT_LAYERS}.items():
        save(options.folder / name, config | {"num_hidden_layers": num_layers}, weights, tokenizer)
        print(options.folder / name)


def config_of(options: argparse.Namespace, vocab_size: int) -> dict[str, Any]:
    """Return the target's configuration, as Hugging Face has it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": options.hidden,
        "intermediate_size": options.inner,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.heads,
        "num_key_value_heads": options.kv_heads,
        "head_dim": options.hidden // options.heads,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def random_weights(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return all parameters by name."""
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(1)
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = (config[f"num_{name}_heads"] * head for name in ("attention", "key_value"))

    def drawn(rows: int, columns: int, scale: float) -> torch.Tensor:
        own = torch.randn(rows, columns, generator=generator, device=device)
        scaled: torch.Tensor = own * (scale * columns**-0.5)
        return scaled.to(torch.bfloat16).cpu()

    def ones() -> torch.Tensor:
        return torch.ones(hidden, dtype=torch.bfloat16)

    weights = {
        "model.embed_tokens.weight": drawn(config["vocab_size"], hidden, hidden**0.5),
        "lm_head.weight": drawn(config["vocab_size"], hidden, 2.0),
        "model.norm.weight": ones(),
    }
    for index in range(config["num_hidden_layers"]):
        added = 1.5 * (1.0 if index < _DRAFT_LAYERS else _LATER_SCALE)
        own = {
            "input_layernorm": ones(),
            "post_attention_layernorm": ones(),
            "self_attn.q_proj": drawn(queries, hidden, 2.0),
            "self_attn.k_proj": drawn(keys, hidden, 2.0),
            "self_attn.v_proj": drawn(keys, hidden, 1.0),
            "self_attn.o_proj": drawn(hidden, queries, added),
            "mlp.gate_proj": drawn(inner, hidden, 1.0),
            "mlp.up_proj": drawn(inner, hidden, 1.0),
            "mlp.down_proj": drawn(hidden, inner, added),
        }
        weights |= {f"model.layers.{index}.{name}.weight": weight for name, weight in own.items()}
    return weights


def save(folder: Path, config: Mapping[str, Any], weights: Mapping[str, torch.Tensor], tokenizer: Path) -> None:
    """Write a model of the first layers."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in [*tokenizer.glob("tokenizer*"), tokenizer / "generation_config.json"]:
        shutil.copy(path, folder / path.name)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    own = {name: weight for name, weight in weights.items() if _layer(name) < config["num_hidden_layers"]}
    save_file(own, folder / "model.safetensors", metadata={"format": "pt"})


def _layer(name: str) -> int:
    return int(name.split(".")[2]) if name.startswith("model.layers.") else -1


if __name__ == "__main__":
    main()
