"""Small machines and records for tests of the simulator: by hand, with round numbers, and random ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from decoding.record import AcceptanceRecord, PromptRecord, RecordedChain, RecordedTree
from decoding.schedule import Schedule
from decoding.tree_shape import cut
from hwprofiles.device_group import DeviceGroup
from hwprofiles.profile import Contention, LaneProfile, LatencyTable, LinkProfile, Profile

NUM_LAYERS = 10
EXIT_LAYERS = (4, 7)
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


def constant(seconds: float, *, num_bytes: float = 0.0) -> LatencyTable:
    """A part that costs the same for 1..200 rows in any context."""
    return LatencyTable(
        rows=(1, 200), contexts=(0,), seconds=((seconds,), (seconds,)), bytes_per_call=num_bytes, source="by hand"
    )


def lane(name: str, *, dispatch_s: float = 0.0, **parts: float) -> LaneProfile:
    """A lane whose parts cost constant seconds; what is not named costs one second."""
    names = ("layer", "lm_head", "exit", "draft_step", "draft_step_features", "draft_streams", "head_step", "streams")
    seconds = dict.fromkeys(names, 1.0) | parts
    exit_s, head_step_s, streams_s = (seconds.pop(part) for part in ("exit", "head_step", "streams"))
    return LaneProfile(
        name=name,
        device="cpu",
        dispatch_s=dispatch_s,
        exit={layer: constant(exit_s) for layer in EXIT_LAYERS},
        heads=dict.fromkeys(("head", "other", "lookup"), constant(head_step_s)),
        streams={"streams": constant(streams_s)},
        **{part: constant(value) for part, value in seconds.items()},
    )


def reading(lane: LaneProfile, *, prefill: float, draft_prefill: float, head_prefill: float) -> LaneProfile:
    """A lane of which is known what reading takes that many seconds for every token, for 1..200 of them."""

    def table(row_s: float) -> LatencyTable:
        return LatencyTable(rows=(1, 200), contexts=(0,), seconds=((row_s,), (200 * row_s,)), source="by hand")

    tables = {"prefill": table(prefill), "draft_prefill": table(draft_prefill)}
    return lane.model_copy(update=tables | {"head_prefill": dict.fromkeys(("head", "other"), table(head_prefill))})


def machine(*lanes: LaneProfile, **fields: Any) -> Profile:
    """A profile of the given lanes, or of two plain ones."""
    lanes = lanes or (lane("target"), lane("draft"))
    return Profile(host={}, target="t", drafter="d", dtype="float32", num_layers=NUM_LAYERS, lanes=lanes, **fields)


def mirror(root_source: str, *, num_tokens: int = 2, **fields: Any) -> Schedule:
    """A mirror schedule with one root per row and source, exit after layer 4."""
    sources: dict[str, dict[str, Any]] = {
        "exit": {"exit_layer": 4, "exit_top_k": 1},
        "draft": {"draft_top_k": 1},
        "hybrid": {"exit_layer": 4, "exit_top_k": 1, "draft_top_k": 1},
    }
    if "roots_per_row" in fields:
        sources = {"exit": {"exit_layer": 4}, "draft": {}}
    return Schedule(
        method="mirror",
        target_lane="target",
        draft_lane="draft",
        num_speculative_tokens=num_tokens,
        root_source=root_source,
        **(sources[root_source] | fields),
    )


def speculative(num_tokens: int = 2, *, draft_lane: str = "draft", **fields: Any) -> Schedule:
    """A synchronous schedule."""
    return Schedule(
        method="speculative",
        target_lane="target",
        draft_lane=draft_lane,
        num_speculative_tokens=num_tokens,
        **fields,
    )


def tree(recorded: RecordedTree, size: int, *, draft_lane: str = "draft", **fields: Any) -> Schedule:
    """A schedule that drafts the trees of a record."""
    return Schedule(
        method=recorded.method,
        target_lane="target",
        draft_lane=None if recorded.method == "speculative_streaming" else draft_lane,
        num_speculative_tokens=recorded.depth,
        tree_size=size,
        tree_top_k=recorded.top_k,
        drafter=recorded.drafter,
        **fields,
    )


def lookup(num_tokens: int = 2, *, draft_lane: str = "target") -> Schedule:
    """A schedule that finds its windows in the text."""
    return Schedule(
        method=LOOKUP.method,
        target_lane="target",
        draft_lane=draft_lane,
        num_speculative_tokens=num_tokens,
        drafter=LOOKUP.drafter,
    )


AUTOREGRESSIVE = Schedule(method="autoregressive", target_lane="target")


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
            source="random",
        )

    knows_prefill = draw(st.booleans())

    def random_lane(name: str) -> LaneProfile:
        of_prompts: dict[str, Any] = {}
        if knows_prefill:
            of_prompts = {"prefill": table(1.0), "draft_prefill": table(draft_share)}
            of_prompts["head_prefill"] = {name: table(draft_share) for name in ("head", "other")}
        return LaneProfile(
            **of_prompts,
            relative_error=random.uniform(0, 0.1),
            name=name,
            device="cpu",
            dispatch_s=random.choice([0.0, seconds(1.0)]),
            wake_s=random.choice([0.0, seconds(0.1)]),
            draft_wake_s=random.choice([0.0, seconds(draft_share)]),
            head_wake_s={"head": random.choice([0.0, seconds(draft_share)])},
            layer=table(1.0),
            lm_head=table(1.0),
            exit={layer: table(1.0) for layer in EXIT_LAYERS},
            draft_step=table(draft_share),
            draft_step_features=table(draft_share),
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
            all_reduces={"layer": 2, "draft_step": 2, "head_step": 1, "prefill": 20},
            all_gathers={"lm_head": 1, "exit": 1, "draft_step": 1},
            algorithm=random.choice(["ring", "tree", None]),
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
