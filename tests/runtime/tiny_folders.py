"""Tiny models as folders, as users have them."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from runtime.drafters.language_model.draft_passes import DraftConfig
from runtime.drafters.language_model.folder import save_draft
from runtime.drafters.language_model.model import DraftModel
from runtime.models.config import decoder_tensors
from runtime.models.decoder import Decoder
from runtime.target.early_exits import ExitHeads, save_exits
from tests.tiny_models import tiny_adapters


@dataclass(frozen=True, kw_only=True)
class TinyFolders:
    decoder: Decoder
    target: Path
    drafter: Path
    feature_drafter: Path
    exits: Path


def save_target(decoder, folder, dtype=torch.float32):
    """Write a decoder as a Hugging Face folder, fused matrices taken apart."""
    folder.mkdir(parents=True, exist_ok=True)
    config = decoder.config
    heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    num_parts = 2 if config.mlp == "gated" else 1
    rows = {"qkv": [heads, kv, kv], "gate_up": [config.intermediate_size] * num_parts}
    state = dict(decoder.named_parameters(remove_duplicate=False))
    tensors = {}
    for ours, theirs in decoder_tensors(config).items():
        sizes = next((rows[part] for part in ours.split(".") if part in rows), None)
        parts = state[ours].split(sizes) if sizes else [state[ours]]
        tensors |= {name: part.detach().to(dtype).clone() for name, part in zip(theirs, parts, strict=True)}
    save_file(tensors, folder / "model.safetensors")
    text = json.dumps(
        {
            "architectures": [config.architecture],
            "vocab_size": config.vocab_size,
            "num_hidden_layers": config.num_layers,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "ffn_dim": config.intermediate_size,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "max_position_embeddings": config.max_position,
            "rope_theta": config.rope_theta,
            "rms_norm_eps": config.norm_eps,
            "tie_word_embeddings": config.tie_embeddings,
            "eos_token_id": list(config.eos_token_ids),
        }
    )
    (folder / "config.json").write_text(text)
    return folder


def save_draft_of(target, folder, *, exit_features=(), noise=0.0, fuse_std=0.02):
    """Write a draft that is the target itself, blurred by the folder's int8 and by `noise` on the layers' weights."""
    vocab_size = target.config.vocab_size
    layers = tuple(range(1, target.config.num_layers + 1))
    config = DraftConfig(
        source_layers=layers,
        vocab_size=vocab_size,
        exit_features=exit_features,
        feature_layer=2 if exit_features else 0,
    )
    torch.manual_seed(5)
    draft = DraftModel(target.config, config)
    draft.decoder.load_state_dict(target.state_dict(), strict=False)
    for parameter in draft.decoder.layers.parameters() if noise else ():
        parameter.data += noise * torch.randn_like(parameter)
    if draft.fuse is not None:
        torch.nn.init.normal_(draft.fuse.weight, std=fuse_std)
    draft.share(target, torch.arange(vocab_size))
    save_draft(draft, folder, target_name="tiny", metadata={})
    return folder


def save_exits_of(target, folder, layers=(2, 3)):
    heads = ExitHeads(adapters=tiny_adapters(target, layers), kept_ids=torch.arange(0, target.config.vocab_size, 2))
    save_exits(heads, folder, target=target, target_name="tiny", metadata={})
    return folder


def save_all(target, root, *, save_draft=save_draft_of, exit_layers=(2, 3)):
    """Write a decoder, its drafts without and with features, and its exits."""
    return TinyFolders(
        decoder=target,
        target=save_target(target, root / "target"),
        drafter=save_draft(target, root / "drafter"),
        feature_drafter=save_draft(target, root / "feature_drafter", exit_features=(1, 2)),
        exits=save_exits_of(target, root / "exits", exit_layers),
    )
