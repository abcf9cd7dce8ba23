"""Medusa and Hydra heads small enough to be computed by hand; random but seeded, float32."""

import torch

from runtime.drafters.hydra import HydraConfig, HydraModel
from runtime.drafters.medusa import MedusaConfig, MedusaModel
from runtime.models.vocabulary import OutputRows
from tests.runtime.plain import features
from tests.tiny_models import VOCAB_SIZE, randomise

TEXT = [3, 17, 42, 8, 30, 5, 12, 44, 20, 6, 58]
LAYERS = 4
"""Of the target that the heads are made for."""
KEPT = torch.arange(0, VOCAB_SIZE, 2)
PATHS = ((0,), (1,), (0, 0), (2,), (0, 1), (1, 0), (0, 0, 0), (1, 1), (1, 0, 0), (0, 0, 1), (3,), (0, 0, 0, 0))
"""Of levels where some nodes have children and some have none."""


def tiny_medusa(target, *, num_heads=4, num_blocks=2, kept=KEPT):
    torch.manual_seed(4)
    config = MedusaConfig(num_heads=num_heads, num_blocks=num_blocks)
    model = randomise(MedusaModel(target.config.hidden_size, config), std=0.3, mean=0.5, vector_std=0.3)
    model.share(target, kept)
    return model


def tiny_hydra(target, *, num_heads=4, kept=KEPT):
    torch.manual_seed(5)
    config = HydraConfig(num_heads=num_heads, prefix_width=6, head_width=8, shared_widths=(10, 12))
    model = randomise(HydraModel(target.config, config), std=0.3, mean=0.5, vector_std=0.3)
    model.share(target, kept)
    return model


def said_after(prompt):
    """The ids that may be drafted after a prompt."""
    return [*KEPT.tolist(), *sorted(set(prompt) - set(KEPT.tolist()))]


def propose_the_same_after_every_prompt(model):
    """A text then is continued the same whether it is a prompt or partly an answer."""
    model.output = OutputRows(model.output.kept_ids, model.output.rows)


def run(steps):
    """The window that a generator of steps ends with, and the rows of its steps."""
    rows = []
    while True:
        try:
            rows.append(next(steps))
        except StopIteration as end:
            return end.value, rows


def tree_schedule(method, *, size=12, depth=4, top_k=0):
    from decoding.schedule import Schedule

    return Schedule(
        method=method,
        target_lane="t",
        draft_lane="d",
        drafter="heads",
        num_speculative_tokens=depth,
        tree_size=size,
        tree_top_k=top_k,
    )


def nodes(window):
    """The drafted tree as the token sequences of its nodes, in order."""
    texts = []
    for token, parent in zip(window.tokens, window.parents, strict=True):
        texts.append((*(texts[parent] if parent >= 0 else ()), token))
    return texts


def draft_at(drafter, target, text, schedule):
    """The first tree after a text."""
    known = features(target, text, [LAYERS])[: len(text) - 1]
    drafter.prefill(text, schedule=schedule, capacity=64, features_TE=known)
    return run(drafter.rollout())[0]


def places_by_drafting(draft_at, text, start, depth):
    """What a record holds, by drafting a tree at every place and looking for the text in it."""
    rows = []
    for place in range(start, len(text)):
        drafted = nodes(draft_at(text[:place]))
        row = []
        for length in range(1, depth + 1):
            ahead = tuple(text[place : place + length])
            row.append(drafted.index(ahead) if len(ahead) == length and ahead in drafted else -1)
        rows.append(row)
    return rows
