"""Random acceptance records for tests of the simulator."""

import numpy as np
from hypothesis import strategies as st

from decoding.record import AcceptanceRecord, PromptRecord, RecordedTree
from tests.sim.worlds.machines import EXIT_LAYERS
from tests.sim.worlds.records import LOOKUP, MAX_WINDOW, NUM_STREAMS, PATHS, TREES, record


def random_ranks(random: np.random.Generator, recorded: RecordedTree, num_tokens: int) -> np.ndarray:
    """From every position a path that ends somewhere in the tree, and not behind the text."""
    ranks = np.full((num_tokens, recorded.depth), -1, dtype=np.int32)
    pool = recorded.top_k + (recorded.depth - 1) * recorded.top_k**2
    for position in range(num_tokens):
        path: tuple[int, ...] = ()
        for place in range(min(recorded.depth, num_tokens - position)):
            path = (*path, int(random.integers(0, 3)))
            last = ranks[position, place - 1] if place else -1
            rank = random.integers(last + 1, pool + 1) if recorded.top_k else (*PATHS, path).index(path)
            if random.random() < 0.3 or rank >= (pool if recorded.top_k else len(recorded.paths)):
                break
            ranks[position, place] = rank
    return ranks


def random_finds(random: np.random.Generator, windows: np.ndarray) -> np.ndarray:
    """Windows of any length, none included."""
    lengths = random.integers(0, windows.shape[1] + 1, len(windows))
    return np.where(np.arange(windows.shape[1]) < lengths[:, None], windows, -1).astype(np.int32)


def random_prompt(seed: int, *, num_tokens: int, vocabulary: int, prompt_length: int) -> PromptRecord:
    """Few tokens, so that drafts, exits and alternatives often agree and overlap; the draft is one greedy model."""
    random = np.random.default_rng(seed)
    text = random.integers(0, vocabulary, num_tokens).astype(np.int32)

    def ranked(first_is_right: float) -> np.ndarray:
        ids = np.stack([random.permutation(vocabulary) for _ in range(num_tokens)]).astype(np.int32)
        for position in np.flatnonzero(random.random(num_tokens) < first_is_right):
            ids[position] = [text[position], *(token for token in ids[position] if token != text[position])]
        return ids

    def rollouts(alternatives: np.ndarray) -> np.ndarray:
        drafts = random.integers(0, vocabulary, (num_tokens, MAX_WINDOW)).astype(np.int32)
        for start in range(num_tokens):
            for place in range(min(MAX_WINDOW, num_tokens - start)):
                drafts[start, place] = alternatives[start + place, 0]
                if drafts[start, place] != text[start + place]:
                    break
        return drafts

    plain, featured = ranked(0.6), ranked(0.7)
    return PromptRecord(
        name=f"random {seed}",
        category="",
        prompt_length=prompt_length,
        text=text,
        rollouts=rollouts(plain),
        feature_rollouts=rollouts(featured),
        alternatives=plain,
        exits={layer: ranked(0.3) for layer in EXIT_LAYERS},
        tree_ranks=tuple(random_ranks(random, recorded, num_tokens) for recorded in TREES),
        chain_drafts=(random_finds(random, rollouts(plain)),),
        stream_hits=random.integers(0, NUM_STREAMS + 1, (num_tokens, MAX_WINDOW)).astype(np.int32),
        feature_stream_hits=random.integers(0, NUM_STREAMS + 1, (num_tokens, MAX_WINDOW)).astype(np.int32),
    )


@st.composite
def records(draw: st.DrawFn) -> AcceptanceRecord:
    """One to three random prompts."""
    vocabulary = draw(st.integers(6, 9))
    return record(
        *(
            random_prompt(
                draw(st.integers(0, 2**20)),
                num_tokens=draw(st.integers(1, 30)),
                vocabulary=vocabulary,
                prompt_length=draw(st.integers(1, 9)),
            )
            for _ in range(draw(st.integers(1, 3)))
        ),
        trees=TREES,
        chains=(LOOKUP,),
        num_streams=NUM_STREAMS,
    )
