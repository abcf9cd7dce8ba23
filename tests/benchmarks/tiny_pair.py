"""A target of four tokens and everything that drafts for it, as folders, and the exact distribution of its texts.

Weights are random, of committed seeds; at `TEMPERATURE` all texts of `NUM_TOKENS` are likely enough to be counted. What
drafts never proposes the last token, unless a prompt has it.
"""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import product
from math import prod
from pathlib import Path

import torch

from runtime.drafters.language_model.draft_passes import DraftConfig
from runtime.drafters.language_model.folder import add_streams, load_draft, save_draft
from runtime.drafters.language_model.model import DraftModel
from runtime.drafters.prompt_lookup import PROMPT_LOOKUP_KIND
from runtime.models.decoder import Decoder
from runtime.verification.rules import sample, seed_of, uniform
from tests.runtime import plain
from tests.runtime.drafters.folders.kinds import save_head
from tests.runtime.tiny_folders import save_exits_of, save_target
from tests.tiny_models import tiny_streams, tiny_target

VOCAB_SIZE = 4
NUM_TOKENS = 3
TEMPERATURE = 0.8
PROMPT = (0, 1, 0)
"""Its end occurred before, so that prompt lookup has something to draft."""
Text = tuple[int, ...]
_SEED = 35
_KEPT = torch.arange(VOCAB_SIZE - 1)
_PATHS = ((0,), (1,), (0, 0), (0, 1), (1, 0))
_NOISE = 0.3
"""Standard deviation of what is added to the target's weights for a draft."""


def save_pair(root: Path) -> Decoder:
    """Write `target`, `exits` and a folder of every drafter under `root`, and return the target."""
    target = tiny_target(
        _SEED,
        vocab_size=VOCAB_SIZE,
        num_layers=2,
        hidden_size=8,
        intermediate_size=8,
        num_heads=2,
        num_kv_heads=1,
        max_position=400,
    )
    save_target(target, root / "target")
    save_exits_of(target, root / "exits", layers=(1,))
    _save_draft(target, root / "draft")
    _save_draft(target, root / "draft with features", exit_features=(1,), feature_layer=1)
    inside = tiny_streams(load_draft(root / "draft", target, dtype=torch.float32).decoder, num_streams=1, start_layer=1)
    add_streams(root / "draft", inside, root / "draft with streams", training={})
    kept = {"kept": _KEPT}
    for kind in ("medusa", "hydra"):
        save_head(kind, target, root / kind, sizes={"num_heads": 2} | kept, paths=_PATHS)
    save_head("eagle1", target, root / "eagle2", sizes=kept, feature_layers=())
    save_head("eagle3", target, root / "eagle3", sizes={"num_taps": 2} | kept, feature_layers=(1, 2))
    sizes = {"num_streams": 2, "start_layer": 1}
    save_head("streams", target, root / "speculative_streaming", sizes=sizes, paths=_PATHS, kept_ids=_KEPT)
    lookup = root / "prompt_lookup"
    lookup.mkdir()
    settings = {"speculators_model_type": PROMPT_LOOKUP_KIND, "min_ngram": 1, "max_ngram": 2}
    (lookup / "config.json").write_text(json.dumps(settings))
    return target


class Exact:
    """What the target says, in float64 and by no code of verification.

    Attributes:
        after: probabilities of the next token, by the tokens after the prompt.
        of_texts: probability of every text of `NUM_TOKENS`.
    """

    def __init__(self, target: Decoder) -> None:
        exact = deepcopy(target).double()
        self.after = {
            text: plain.target_logits(exact, [*PROMPT, *text])[-1].div(TEMPERATURE).softmax(-1).numpy()
            for length in range(NUM_TOKENS)
            for text in product(range(VOCAB_SIZE), repeat=length)
        }
        self.of_texts: dict[Text, float] = {
            text: prod(float(self.after[text[:place]][token]) for place, token in enumerate(text))
            for text in product(range(VOCAB_SIZE), repeat=NUM_TOKENS)
        }

    def plain_text(self, seed: int) -> Text:
        """The text of plain sampling: under the rule match every method writes it."""
        text: Text = ()
        own = seed_of(seed, PROMPT)
        for place in range(len(PROMPT), len(PROMPT) + NUM_TOKENS):
            text = (*text, sample(self.after[text], uniform(own, "target", place)))
        return text


def _save_draft(target: Decoder, folder: Path, *, exit_features: tuple[int, ...] = (), feature_layer: int = 0) -> None:
    """Write a draft with the target's layers, disturbed."""
    config = DraftConfig(
        source_layers=(1, 2), vocab_size=len(_KEPT), exit_features=exit_features, feature_layer=feature_layer
    )
    torch.manual_seed(_SEED + 1)
    draft = DraftModel(target.config, config)
    draft.decoder.layers.load_state_dict(target.layers.state_dict())
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(_NOISE * torch.randn_like(parameter))
    draft.share(target, _KEPT)
    save_draft(draft, folder, target_name="tiny", metadata={})
