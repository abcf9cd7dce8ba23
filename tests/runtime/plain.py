"""What the models say without any cache, mask table or lane: the reference of the tests here."""

import torch

from decoding.messages import NO_WINDOW
from runtime.arrays import normalise_features
from runtime.models.decoder import causal_mask
from runtime.verification.rules import GREEDY, decide


def hidden_states(target, text, *, layers):
    """Hidden states after each of `layers` for every position of `text`, [E, T, D]."""
    x = target.embedding(torch.tensor([text]))
    found, done = [], 0
    for layer in layers:
        x = target.run_layers(x, done, layer, positions=torch.arange(len(text)), mask=causal_mask(len(text), x.dtype))
        found.append(x[0])
        done = layer
    return torch.stack(found)


def target_logits(target, text):
    """Logits after every position of `text`, [T, V]."""
    return target.logits(hidden_states(target, text, layers=[target.config.num_layers]))[0]


def features(target, text, layers):
    return normalise_features(hidden_states(target, text, layers=layers).transpose(0, 1), target.config.norm_eps)


def continue_text(target, prompt, num_tokens, sampling=GREEDY, *, eos=()):
    """Plain decoding, every token from scratch."""
    text = list(prompt)
    for _ in range(num_tokens):
        logits = target_logits(target, text)[-1:]
        text.append(decide(logits, NO_WINDOW, sampling, len(text)).next_token)
        if text[-1] in eos:
            break
    return text[len(prompt) :]


def smallest_margin(target, prompt, text):
    """How near the target came to another token: best minus second logit, the least over the tokens of `text`."""
    logits = target_logits(target, [*prompt, *text])[len(prompt) - 1 : -1]
    best = logits.topk(2, dim=-1).values
    return float((best[:, 0] - best[:, 1]).min())


def draft_states(draft, ids, features_BTE=None, dtype=torch.float32):
    """The draft's normalised hidden states of a text read at once, [T, D]."""
    mask = causal_mask(len(ids), dtype)
    added_BTD = None if features_BTE is None else draft.fused(features_BTE)
    states = draft.run(torch.tensor([ids]), positions=torch.arange(len(ids)), mask=mask, added_BTD=added_BTD)
    return states.hidden_TD[0]


def draft_text(draft, prefix, num_tokens, *, features_TE=None):
    """The draft's greedy tokens after `prefix`, and its ids in order of preference at every place.

    It says what it may say since it last took a prompt in.
    """
    text, ranked = list(prefix), []
    for _ in range(num_tokens):
        rows = None
        if features_TE is not None:
            rows = torch.zeros(1, len(text), features_TE.shape[-1])
            rows[0, 1 : len(prefix)] = features_TE[: len(prefix) - 1]
        order = (draft.output.rows @ draft_states(draft, text, rows)[-1]).argsort(descending=True, stable=True)
        ranked.append([int(draft.output.ids[index]) for index in order])
        text.append(ranked[-1][0])
    return text[len(prefix) :], ranked
