"""A small machine and a small record, made up but plausible: 135M-like target on cores, a draft five times faster."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from decoding.record import AcceptanceRecord, PromptRecord, RecordedChain, RecordedTree
from decoding.recorded.prompt_record import hash_of_ids
from decoding.schedule import Schedule
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import Contention, LinkProfile, Profile
from planner.search.space import halves
from planner.what_if import sensitivity

ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (0, 512, 2048)
NUM_LAYERS = 30
EXIT_LAYERS = (15, 20)
VOCABULARY = 1000
PATHS = ((0,), (1,), (0, 0), (2,), (0, 1), (1, 0), (0, 0, 0), (0, 2), (3,), (0, 0, 1))
TREES = (
    RecordedTree(method="medusa", drafter="medusa-heads", depth=3, paths=PATHS),
    RecordedTree(method="hydra", drafter="hydra-heads", depth=3, paths=PATHS),
    RecordedTree(method="eagle2", drafter="eagle", depth=4, top_k=4),
    RecordedTree(method="eagle3", drafter="eagle-3", depth=4, top_k=4),
    RecordedTree(method="speculative_streaming", drafter="streams", depth=3, paths=PATHS),
)
KNOWN_MORE = {"medusa": 0.8, "hydra": 0.9, "eagle2": 1.0, "eagle3": 1.1, "speculative_streaming": 1.2}
"""How many more tokens they know than the draft."""


CHAINS = (RecordedChain(method="prompt_lookup", drafter="lookup"),)
DRAFT_MIRROR = Schedule(
    method="mirror",
    target_lane="target",
    draft_lane="draft",
    num_speculative_tokens=2,
    root_source="draft",
    draft_top_k=2,
)
EXIT_MIRROR = Schedule(
    method="mirror",
    target_lane="target",
    draft_lane="draft",
    num_speculative_tokens=3,
    root_source="exit",
    exit_layer=15,
    exit_top_k=4,
    drafter="four-layer",
)
HEADS_S = {"lookup": 1e-5, "medusa-heads": 3e-3, "hydra-heads": 2.5e-3, "eagle": 2e-3, "eagle-3": 2e-3}


def table(
    one_row_s: float, *, row_growth: float = 0.02, speed: float = 1.0, rows: tuple[int, ...] = ROWS
) -> LatencyTable:
    """Seconds that grow with rows and a little with the context."""
    seconds = tuple(
        tuple(one_row_s / speed * (1 + row_growth * (count - 1) + context / 10_000) for context in CONTEXTS)
        for count in rows
    )
    return LatencyTable(rows=rows, contexts=CONTEXTS, seconds=seconds, relative_error=0.02, source="made up")


def lane(name: str, cores: tuple[int, ...], *, speed: float = 1.0, draft_step_s: float = 6e-3) -> LaneProfile:
    """A lane that can run both models."""
    return LaneProfile(
        name=name,
        device="cpu",
        cores=cores,
        dispatch_s=1.2e-4,
        layer=table(1.2e-3, speed=speed),
        lm_head=table(5e-3, speed=speed),
        exit={layer: table(1.5e-3, speed=speed) for layer in EXIT_LAYERS},
        draft_step=table(draft_step_s, speed=speed),
        draft_step_features=table(draft_step_s * 1.1, speed=speed),
        draft_start=table(draft_step_s * 1.1, speed=speed),
        draft_streams=table(draft_step_s / 10, speed=speed, rows=(1, 2)),
        heads={name: table(step_s, speed=speed) for name, step_s in HEADS_S.items()},
        streams={"streams": table(4e-3, speed=speed)},
    )


def machine(*, draft_step_s: float = 6e-3, pooled_speed: float = 1.6) -> Profile:
    """Two cores as two lanes, or as one."""
    return Profile(
        host={"cpu": "Synthetic 2-core", "cores": 2},
        target="SmolLM2-135M-Instruct",
        drafter="four-layer",
        dtype="bfloat16",
        num_layers=NUM_LAYERS,
        lanes=(
            lane("target", (0,), draft_step_s=draft_step_s),
            lane("draft", (1,), draft_step_s=draft_step_s),
            lane("both", (0, 1), speed=pooled_speed, draft_step_s=draft_step_s),
        ),
        links=(LinkProfile(lanes=("target", "draft"), latency_s=5e-5, bytes_per_s=2e9, source="made up"),),
        contention=(
            Contention(lanes=("target", "draft"), slowdown=(1.04, 1.06), relative_error=0.01, source="made up"),
        ),
        round_overhead_s=1.5e-4,
        calibration_s=190.0,
        relative_error=0.03,
    )


PREFILL = LatencyTable(
    rows=(1, 16, 2048), contexts=(0,), seconds=((0.04,), (0.05,), (4.0,)), relative_error=0.02, source="made up"
)


def with_prefill(profile: Profile) -> Profile:
    """The machine with what its target takes to read prompts."""
    lanes = tuple(lane.model_copy(update={"prefill": PREFILL}) for lane in profile.lanes)
    return profile.model_copy(update={"lanes": lanes})


def tree_ranks(random: np.random.Generator, recorded: RecordedTree, num_tokens: int, share: float) -> np.ndarray:
    """Places along paths that end where a tree does not know the token, or behind its pool or its paths."""
    ranks = np.full((num_tokens, recorded.depth), -1, dtype=np.int32)
    choices = random.geometric(0.6, num_tokens) - 1
    knows = random.random(num_tokens) < share
    for start in range(num_tokens):
        path: tuple[int, ...] = ()
        for place in range(min(recorded.depth, num_tokens - start)):
            path = (*path, int(choices[start + place]))
            is_known = path in PATHS or (bool(recorded.top_k) and path[-1] < recorded.top_k)
            if not knows[start + place] or not is_known:
                break
            ranks[start, place] = sum(path) * (place + 1) + place if recorded.top_k else PATHS.index(path)
    return ranks


def prompt_record(
    seed: int,
    *,
    num_tokens: int = 60,
    acceptance: float = 0.6,
    max_window: int = 8,
    with_features: bool = True,
    num_streams: int = 0,
    trees: tuple[RecordedTree, ...] = (),
    chains: tuple[RecordedChain, ...] = (),
) -> PromptRecord:
    """A text whose draft knows each token with probability `acceptance`, and exits that know it more often."""
    random = np.random.default_rng(seed)
    text = random.integers(10, VOCABULARY, num_tokens).astype(np.int32)

    def rollouts(share: float) -> np.ndarray:
        drafts = random.integers(0, 10, (num_tokens, max_window)).astype(np.int32)
        knows = random.random(num_tokens) < share
        for start in range(num_tokens):
            for place in range(min(max_window, num_tokens - start)):
                if not knows[start + place]:
                    break
                drafts[start, place] = text[start + place]
        return drafts

    def ranked(first: np.ndarray | None, width: int, share: float) -> np.ndarray:
        ids = np.array([random.permutation(10)[:width] for _ in range(num_tokens)], dtype=np.int32)
        ranks = random.geometric(0.5, num_tokens) - 1
        for position in range(num_tokens):
            rest = [token for token in ids[position] if first is None or token != first[position]]
            if random.random() < share and (first is None or first[position] != text[position]):
                rest.insert(min(ranks[position], width - 1), text[position])
            row = rest if first is None else [first[position], *rest]
            ids[position] = row[:width]
        return ids

    hits = np.full((num_tokens if num_streams else 0, max_window), num_streams, dtype=np.int32)
    plain, featured = rollouts(acceptance), rollouts(min(1.0, acceptance + 0.08))
    alternatives = ranked(plain[:, 0], 6, 0.6)
    if with_features:
        ranked(featured[:, 0], 6, 0.6)  # unused: the draws of everything after it are older than its end
    found = np.where(
        np.arange(max_window) < np.random.default_rng((seed, 1)).integers(0, max_window, (num_tokens, 1)), plain, -1
    )
    return PromptRecord(
        name=f"prompt {seed}",
        category="maths" if seed % 2 else "writing",
        prompt_length=20 + seed % 7,
        text=text,
        rollouts=plain,
        feature_rollouts=featured if with_features else np.zeros((0, max_window), dtype=np.int32),
        alternatives=alternatives,
        exits={layer: ranked(None, 9, 0.55 + layer / 100) for layer in EXIT_LAYERS},
        stream_hits=hits,
        feature_stream_hits=hits,
        tree_ranks=tuple(
            tree_ranks(random, recorded, num_tokens, acceptance * KNOWN_MORE[recorded.method]) for recorded in trees
        ),
        chain_drafts=(found.astype(np.int32),) * len(chains),
    )


def acceptance_record(
    *,
    num_prompts: int = 4,
    num_tokens: int = 60,
    max_window: int = 8,
    num_streams: int = 0,
    trees: tuple[RecordedTree, ...] = (),
    chains: tuple[RecordedChain, ...] = (),
    **settings: Any,
) -> AcceptanceRecord:
    """Some prompts of `prompt_record`, which takes `settings`; streams, if there are any, are always right."""
    facts = {"num_streams": num_streams, "trees": trees, "chains": chains}
    size = {"num_tokens": num_tokens, "max_window": max_window}
    prompts = (prompt_record(seed, **size, **facts, **settings) for seed in range(num_prompts))
    return AcceptanceRecord(
        target="SmolLM2-135M-Instruct",
        drafter="four-layer",
        dtype="bfloat16",
        max_window=max_window,
        max_new_tokens=num_tokens,
        exit_layers=EXIT_LAYERS,
        prompts=tuple(prompts),
        **facts,
    )


def sampled_record(share: float, **settings: Any) -> AcceptanceRecord:
    """The same of texts sampled at temperature 1; each of the draft's own samples is accepted with that probability."""

    def with_samples(one: PromptRecord) -> PromptRecord:
        accepted = np.full(one.rollouts.shape, share, dtype=np.float32)
        refused = np.full_like(one.rollouts, 5 if share < 1 else -1)
        return replace(
            one,
            draft_acceptance=accepted,
            refused_drafts=refused,
            feature_draft_acceptance=accepted[: len(one.feature_rollouts)],
            feature_refused_drafts=refused[: len(one.feature_rollouts)],
        )

    made = acceptance_record(**settings)
    return replace(made, temperature=1.0, prompts=tuple(map(with_samples, made.prompts)))


def with_equal_texts(record: AcceptanceRecord, count: int) -> AcceptanceRecord:
    """Return the record with every text `count` times, as texts of one prompt: it tells no more than before."""
    prompts = (
        replace(one, name=f"{one.name}, seed {seed}", prompt_hash=hash_of_ids([place]))
        for place, one in enumerate(record.prompts)
        for seed in range(count)
    )
    return replace(record, prompts=tuple(prompts))


def half_ignorant(half: Literal["choosing", "judging"]) -> AcceptanceRecord:
    """Return a record of eight prompts, on one half of which no drafted token is right."""
    record, ignorant = acceptance_record(num_prompts=8), acceptance_record(num_prompts=8, acceptance=0.0)
    places = getattr(halves(record), half)
    mixed = [(ignorant if place in places else record).prompts[place] for place in range(8)]
    return replace(record, prompts=tuple(mixed))


@contextmanager
def coarse_sweeps() -> Iterator[None]:
    """Sweep a few values with a few draws meanwhile, which is nine tenths of a plan, for tests of all else in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sensitivity, "ACCEPTANCES", (0.05, 0.35, 0.65, 0.95))
        patch.setattr(sensitivity, "DRAFT_SPEEDS", (0.125, 0.5, 2.0, 8.0))
        patch.setattr(sensitivity, "NUM_DRAWS", 4)
        yield
