"""Random machines, acceptance records and schedules for tests of the simulator."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from decoding.record import AcceptanceRecord, PromptRecord, RecordedTree
from decoding.schedule import Schedule
from hwprofiles.lane_profile import DeviceGroup, LaneProfile, Overhead
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import Contention, LinkProfile, Profile
from tests.sim.worlds.machines import EXIT_LAYERS, lane, machine
from tests.sim.worlds.records import LOOKUP, MAX_WINDOW, NUM_STREAMS, PATHS, TREES, record
from tests.sim.worlds.schedules import AUTOREGRESSIVE, lookup, mirror, speculative, tree


@st.composite
def profiles(draw: st.DrawFn, *, contended: bool | None = None) -> Profile:
    """Random tables over rows and contexts. Whole seconds make both lanes reach boundaries at the same time."""
    random = np.random.default_rng(draw(st.integers(0, 2**20)))
    whole_seconds = draw(st.booleans())
    draft_share = draw(st.sampled_from([0.2, 1.0, 5.0]))

    def seconds(scale: float) -> float:
        value = random.uniform(0.1, 2.0) * scale
        return float(np.ceil(value)) if whole_seconds else value

    def table(scale: float) -> LatencyTable:
        contexts = (0, 16, 50) if random.random() < 0.5 else (0,)
        return LatencyTable(
            rows=(1, 3, 8, 60, 160),
            contexts=contexts,
            seconds=tuple(tuple(seconds(scale) for _ in contexts) for _ in range(5)),
            relative_error=random.uniform(0, 0.1),
            bytes_per_call=random.uniform(0, 4),
            num_bytes=tuple(tuple(random.uniform(0, 4) for _ in contexts) for _ in range(5)) if has_bytes else (),
            source="random",
        )

    has_bytes = draw(st.booleans())
    knows_prefill = draw(st.booleans())

    def random_lane(name: str) -> LaneProfile:
        of_prompts: dict[str, Any] = {}
        if knows_prefill:
            of_prompts = {"prefill": table(1.0), "draft_prefill": table(draft_share)}
            of_prompts["head_prefill"] = {name: table(draft_share) for name in ("head", "other")}
        of_events = dict.fromkeys(("first_step", "first_step:head"), draft_share)
        of_events |= dict.fromkeys(("exit", "features", "features:head", "features:other"), 0.5)
        return LaneProfile(
            **of_prompts,
            relative_error=random.uniform(0, 0.1),
            name=name,
            device="cpu",
            dispatch_s=random.choice([0.0, seconds(1.0)]),
            overheads={
                key: Overhead(seconds=random.choice([0.0, seconds(share)]), relative_error=random.uniform(0, 0.1))
                for key, share in of_events.items()
            },
            layer=table(1.0),
            lm_head=table(1.0),
            exit={layer: table(1.0) for layer in EXIT_LAYERS},
            draft_step=table(draft_share),
            draft_step_features=table(draft_share),
            draft_start=table(draft_share),
            draft_streams=table(draft_share),
            heads={name: table(draft_share) for name in ("head", "other", "lookup")},
            streams={"streams": table(draft_share)},
        )

    def random_link(*lanes: str) -> LinkProfile:
        return LinkProfile(
            lanes=lanes,
            latency_s=random.choice([0.0, seconds(1.0), seconds(30.0)]),
            bytes_per_s=random.choice([1e9, 16.0, random.uniform(1.0, 100.0)]),
            source="random",
        )

    def random_group() -> DeviceGroup:
        return DeviceGroup(
            num_devices=int(random.integers(1, 9)),
            latency_s=random.choice([0.0, seconds(0.1)]),
            bytes_per_s=random.uniform(1.0, 100.0),
            reduced_bytes_per_row=random.choice([0.0, 4.0]),
            gathered_bytes_per_row=random.choice([0.0, 1.0]),
            all_reduces={"layer": 2, "draft_step": 2, "heads": 1, "prefill": 20},
            all_gathers={"lm_head": 1, "exit": 1, "draft_step": 1},
            source="random",
        )

    contended = draw(st.booleans()) if contended is None else contended
    pooled_memory = contended and draw(st.booleans())
    slowdown = tuple(float(random.choice([1.0, 2.0, random.uniform(0.9, 3.0)])) for _ in range(2))
    links = {
        "none": (),
        "one": (random_link("draft", "target"),),
        "each way": (random_link("target", "draft"), random_link("draft", "target")),
        "over a host": (random_link("target", "host"), random_link("host", "draft"), random_link("draft", "host")),
    }
    return machine(
        random_lane("target").model_copy(update={"group": draw(st.sampled_from([None, random_group()]))}),
        random_lane("draft").model_copy(update={"group": draw(st.sampled_from([None, None, random_group()]))}),
        lane("host"),
        links=links[draw(st.sampled_from(sorted(links)))],
        contention=(Contention(lanes=("target", "draft"), slowdown=slowdown, relative_error=0.04, source="random"),)
        if contended
        else (),
        memory_pool_bytes_per_s=random.uniform(1.0, 20.0) if pooled_memory else None,
        features_bytes_per_row=random.choice([0.0, 4.0]),
        round_overhead_s=random.choice([0.0, seconds(1.0)]),
        relative_error=0.05,
        pace_error=random.choice([0.0, 0.1]),
    )


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


@st.composite
def schedules(draw: st.DrawFn, *, method: str | None = None, drawn: bool = False) -> Schedule:
    """Any schedule that random records and profiles can answer for, or (`drawn`) acceptance that is drawn."""
    method = method or draw(
        st.sampled_from(["autoregressive", "speculative", "lookup", "tree", "mirror", "mirror", "mirror"])
    )
    if method == "autoregressive":
        return AUTOREGRESSIVE
    if method == "lookup" and not drawn:
        return lookup(draw(st.integers(1, MAX_WINDOW)), draft_lane=draw(st.sampled_from(["draft", "target"])))
    if method == "tree":
        recorded = draw(st.sampled_from([one for one in TREES if not drawn or one.method != "hydra"]))
        size = draw(st.integers(recorded.depth, len(PATHS) + 4))
        return tree(recorded, size, draft_lane=draw(st.sampled_from(["draft", "target"])))
    num_tokens = draw(st.integers(1, MAX_WINDOW))
    fields: dict[str, Any] = {"draft_streams": 0 if drawn else draw(st.integers(0, NUM_STREAMS))}
    if method in ("speculative", "lookup"):
        fields["exit_features"] = draw(st.booleans())
        return speculative(num_tokens, draft_lane=draw(st.sampled_from(["draft", "target"])), **fields)
    root_source = draw(st.sampled_from(["exit", "draft", "hybrid"]))
    if root_source != "draft":
        fields["exit_layer"] = draw(st.sampled_from(EXIT_LAYERS))
    if root_source == "exit":
        fields["exit_features"] = draw(st.booleans())
    if root_source != "hybrid" and draw(st.booleans()):
        budget = draw(st.lists(st.integers(0, 5), min_size=1, max_size=num_tokens + 1).filter(any))
        return mirror(root_source, num_tokens=num_tokens, roots_per_row=tuple(budget), **fields)
    if root_source != "draft":
        fields["exit_top_k"] = draw(st.integers(1, 5))
    if root_source != "exit":
        fields["draft_top_k"] = draw(st.integers(1, 5))
    return mirror(root_source, num_tokens=num_tokens, **fields)
