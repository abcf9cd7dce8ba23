"""Models small enough to be compared number by number; random but seeded, float32."""

import torch
from torch import nn

from runtime.drafters.language_model.draft_passes import DraftConfig
from runtime.drafters.language_model.folder import StreamConfig
from runtime.drafters.language_model.model import DraftModel
from runtime.drafters.streams import StreamModel
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder
from runtime.target.exit_adapter import ExitAdapter

VOCAB_SIZE = 61
EOS = 2


OPT = {
    "architecture": "OPTForCausalLM",
    "num_kv_heads": 4,
    "rope_theta": 0.0,
    "positions": "learned",
    "norm": "layer",
    "mlp": "relu",
    "attention_bias": True,
    "attention_out_bias": True,
    "mlp_bias": True,
}
"""What is other about a tiny OPT."""


def tiny_config(**changes) -> ModelConfig:
    sizes = {
        "architecture": "LlamaForCausalLM",
        "vocab_size": VOCAB_SIZE,
        "num_layers": 4,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 4,
        "max_position": 128,
        "rope_theta": 10_000.0,
        "norm_eps": 1e-5,
        "tie_embeddings": True,
        "eos_token_ids": (EOS,),
    }
    return ModelConfig(**sizes | changes)


def randomise(module, *, std: float, mean: float | None = 1.0, vector_std: float = 0.2):
    """Give matrices random weights, and vectors such around a mean (None: leave them); return the frozen module."""
    for parameter in module.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=std)
        elif mean is not None:
            nn.init.normal_(parameter, mean=mean, std=vector_std)
    return module.eval().requires_grad_(requires_grad=False)


def tiny_target(seed: int = 0, **changes) -> Decoder:
    """A target whose argmax is far from uniform: weights are large."""
    torch.manual_seed(seed)
    return randomise(Decoder(tiny_config(**changes)), std=0.4)


def tiny_draft(
    target: Decoder, *, exit_features: tuple[int, ...] = (), feature_layer: int = 0, seed: int = 1
) -> DraftModel:
    """A draft with random layers of its own, sharing the target's embedding and every second head row."""
    torch.manual_seed(seed)
    kept_ids = torch.arange(0, VOCAB_SIZE, 2)
    config = DraftConfig(
        source_layers=(1, 2, 4),
        vocab_size=len(kept_ids),
        exit_features=exit_features,
        feature_layer=feature_layer,
    )
    draft = randomise(DraftModel(target.config, config), std=0.4, mean=None)
    draft.share(target, kept_ids)
    return draft


def tiny_adapters(target: Decoder, layers: tuple[int, ...], *, width: int = 8) -> dict[int, ExitAdapter]:
    torch.manual_seed(3)
    config = target.config
    adapters = {layer: ExitAdapter(config.hidden_size, width, config.norm_eps) for layer in layers}
    for adapter in adapters.values():
        for parameter in adapter.parameters():
            nn.init.normal_(parameter, std=0.3)
        adapter.requires_grad_(requires_grad=False)
    return adapters


def tiny_streams(decoder: Decoder, *, num_streams: int = 3, start_layer: int = 2, seed: int = 6) -> StreamModel:
    """Streams with low-rank changes that are not small."""
    torch.manual_seed(seed)
    streams = StreamModel(decoder, StreamConfig(num_streams=num_streams, start_layer=start_layer, rank=2))
    for weight in streams.trained.values():
        nn.init.normal_(weight, std=0.3)
    return streams.eval().requires_grad_(requires_grad=False)


TINY_SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
"""The config.json of a model of which nothing but the shape is there."""
