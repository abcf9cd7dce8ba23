"""Acceptance records for tests of the simulator, by hand: what every part knows of a text."""

from dataclasses import replace
from typing import Any

import numpy as np

from decoding.record import AcceptanceRecord, PromptRecord, RecordedChain, RecordedTree
from decoding.schedule import MAX_TREE
from decoding.tree_shape import cut
from sim.acceptance.assumed import ByTask
from sim.acceptance.drawn_texts import RIGHT
from sim.acceptance.rates import AssumedTree, Texts
from sim.acceptance.replay import Replay
from tests.sim.worlds.machines import EXIT_LAYERS

MAX_WINDOW = 4
NUM_STREAMS = 2
WRONG = 0
"""A token that stands in no text."""
PATHS = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (2,))
"""A static tree, three levels deep."""
TREES = (
    RecordedTree(method="medusa", drafter="head", depth=3, paths=PATHS),
    RecordedTree(method="hydra", drafter="head", depth=3, paths=PATHS),
    RecordedTree(method="hydra", drafter="head", depth=2, paths=cut(PATHS, len(PATHS), 2)),
    RecordedTree(method="eagle2", drafter="head", depth=3, top_k=2),
    RecordedTree(method="eagle3", drafter="head", depth=2, top_k=3),
    RecordedTree(method="eagle3", drafter="other", depth=1, top_k=2),
    RecordedTree(method="speculative_streaming", drafter="streams", depth=3, paths=PATHS),
)
LOOKUP = RecordedChain(method="prompt_lookup", drafter="lookup")


def prompt(draft: str, exit_: str = "", alternatives: str = "", *, prompt_length: int = 1) -> PromptRecord:
    """A text of tokens 100, 101, ..; what knows its i-th token has a 1 in place i.

    The draft goes on with wrong tokens behind one that it does not know. An exit that does not know a token, and
    the draft's second choice where it does not, name wrong ones.
    """
    num_tokens = len(draft)
    text = np.arange(100, 100 + num_tokens, dtype=np.int32)
    rollouts = np.full((num_tokens, MAX_WINDOW), WRONG, dtype=np.int32)
    for start in range(num_tokens):
        for place in range(min(MAX_WINDOW, num_tokens - start)):
            if draft[start + place] == "0":
                break
            rollouts[start, place] = text[start + place]
    knows = np.array([flag == "1" for flag in exit_.ljust(num_tokens, "0")])
    second = np.array([flag == "1" for flag in alternatives.ljust(num_tokens, "0")])
    exits = np.stack([np.where(knows, text, 1), np.full(num_tokens, 2)], axis=1).astype(np.int32)
    return PromptRecord(
        name="by hand",
        category="",
        prompt_length=prompt_length,
        text=text,
        rollouts=rollouts,
        feature_rollouts=rollouts,
        alternatives=np.stack([rollouts[:, 0], np.where(second, text, 1)], axis=1).astype(np.int32),
        exits=dict.fromkeys(EXIT_LAYERS, exits),
    )


def record(*prompts: PromptRecord, **fields: Any) -> AcceptanceRecord:
    """A record of the given prompts."""
    known: dict[str, Any] = {
        "target": "t",
        "drafter": "d",
        "dtype": "float32",
        "max_window": MAX_WINDOW,
        "max_new_tokens": max(len(one.text) for one in prompts),
        "exit_layers": EXIT_LAYERS,
        "prompts": prompts,
    }
    return AcceptanceRecord(**(known | fields))


def drawn(
    rates: float | tuple[float, ...],
    hit_rate: float,
    *,
    num_tokens: int,
    num_prompts: int = 1,
    seed: int = 0,
    exit_layers: tuple[int, ...] = EXIT_LAYERS,
) -> Replay:
    """Texts drawn with given rates, in which so many outcomes have a branch of any source."""
    texts = Texts(num_texts=num_prompts, num_tokens=num_tokens, prompt_length=1, seed=seed)
    known = {
        "feature_rates": rates,
        "exit_coverage": dict.fromkeys(exit_layers, (hit_rate,) * MAX_TREE),
        "trees": tuple(AssumedTree(**one.model_dump()) for one in TREES),
        "alternative_rates": (0.0, 0.0),
    }
    made = ByTask({"": rates}, texts=texts, **known).record
    prompts = []
    for one in made.prompts:
        [exit_, *_] = one.exits.values()
        others = np.where(exit_ == RIGHT, RIGHT, exit_ + MAX_TREE + 1)
        prompts.append(replace(one, alternatives=others))
    return Replay(replace(made, prompts=tuple(prompts)))
