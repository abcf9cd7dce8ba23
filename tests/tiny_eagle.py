"""EAGLE heads on tiny targets, random but seeded, and what they say by the plainest means."""

import math

import torch

from runtime.drafters.eagle.model import Eagle1, Eagle3, EagleHead
from runtime.models.decoder import Decoder, rotate
from tests.tiny_heads import propose_the_same_after_every_prompt
from tests.tiny_models import VOCAB_SIZE, randomise

KEPT = torch.arange(0, VOCAB_SIZE, 2)


def tiny_eagle1(target: Decoder, seed: int = 1, *, kept=KEPT) -> Eagle1:
    torch.manual_seed(seed)
    return _filled(Eagle1(target.config, len(kept)), target, kept)


def tiny_eagle3(target: Decoder, num_taps: int = 3, seed: int = 1, *, kept=KEPT) -> Eagle3:
    torch.manual_seed(seed)
    return _filled(Eagle3(target.config, len(kept), num_taps), target, kept)


def _filled(head, target, kept):
    randomise(head, std=0.3).share(target, kept)
    propose_the_same_after_every_prompt(head)
    return head


def norm(x, weight, eps):
    return x / math.sqrt(float(x.square().mean()) + eps) * weight


@torch.no_grad()
def plain_features(head: EagleHead, ids, entered, *, first_position=1):
    """The head's features of a chain of rows, row by row, head by head; `entered` are what the rows are fed [T, D]."""
    config, layer = head.config, head.layer
    group = config.num_heads // config.num_kv_heads
    keys, values, outputs = [], [], []
    for row, (token, feature) in enumerate(zip(ids, entered, strict=True)):
        embedded = head.embedding.weight[token]
        if isinstance(head, Eagle1):
            attended = residual = head.fuse.weight @ torch.cat([embedded, feature])
        else:
            parts = [
                norm(embedded, head.token_norm, config.norm_eps),
                norm(feature, head.feature_norm, config.norm_eps),
            ]
            attended, residual = torch.cat(parts), feature
        heads = (layer.qkv.weight @ attended).view(-1, config.head_dim)
        rotary = head.rotary(torch.tensor([first_position + row]), torch.float32)
        rotated = rotate(heads[None, None, : config.num_heads + config.num_kv_heads], *rotary)[0, 0]
        keys.append(rotated[config.num_heads :])
        values.append(heads[config.num_heads + config.num_kv_heads :])
        seen = []
        for query in range(config.num_heads):
            of = query // group
            scores = torch.stack([rotated[query] @ key[of] / math.sqrt(config.head_dim) for key in keys])
            seen.append(sum(weight * value[of] for weight, value in zip(scores.softmax(0), values, strict=True)))
        x = residual + layer.out.weight @ torch.cat(seen)
        gate, up = (layer.gate_up.weight @ norm(x, layer.mlp_norm, config.norm_eps)).chunk(2)
        outputs.append(x + layer.down.weight @ (gate * torch.sigmoid(gate) * up))
    return torch.stack(outputs)


@torch.no_grad()
def plain_entered(head: EagleHead, features_TE):
    """What is fed for the target's features [T, E] at unit scale."""
    if isinstance(head, Eagle1):
        return features_TE * head.target_norm
    return features_TE @ head.fuse.weight.T


@torch.no_grad()
def plain_log_probs(head: EagleHead, feature):
    """Log-probabilities over the kept ids after a feature [D]."""
    read = feature if isinstance(head, Eagle1) else norm(feature, head.output_norm, head.config.norm_eps)
    return (head.lm_head.weight @ read).log_softmax(0)
