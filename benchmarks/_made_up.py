"""A machine and texts that nobody measured, for timing the simulator: plausible, and of any size."""

from __future__ import annotations

from itertools import product

import numpy as np

from decoding.record import AcceptanceRecord, PromptRecord
from decoding.schedule import Schedule
from hwprofiles.lane_profile import DeviceGroup
from hwprofiles.profile import Contention, LaneProfile, LatencyTable, LinkProfile, Profile

NUM_PROMPTS, NUM_TOKENS, MAX_WINDOW, VOCABULARY = 40, 128, 8, 64
EXIT_LAYERS = (15, 20)
PROMPT_LENGTHS = range(20, 520)
SHARE_KNOWN = 0.6
"""Of the next tokens, by the draft and by an exit."""
NUM_IDS = 9
"""Kept for every place."""

LANES = {"target_lane": "target", "draft_lane": "draft"}
SCHEDULES = {
    "autoregressive": Schedule(method="autoregressive", target_lane="target"),
    "speculative": Schedule(method="speculative", **LANES, num_speculative_tokens=4),
    "mirror, draft": Schedule(method="mirror", **LANES, num_speculative_tokens=4, root_source="draft", draft_top_k=2),
    "mirror, exit": Schedule(
        method="mirror", **LANES, num_speculative_tokens=4, root_source="exit", exit_layer=15, exit_top_k=4
    ),
    "mirror, hybrid": Schedule(
        method="mirror",
        **LANES,
        num_speculative_tokens=4,
        root_source="hybrid",
        exit_layer=15,
        exit_top_k=4,
        draft_top_k=1,
    ),
}


def search_space() -> list[Schedule]:
    """Some hundred schedules of all kinds."""
    schedules = [SCHEDULES["autoregressive"]]
    windows, top_k = range(1, MAX_WINDOW + 1), (1, 2, 4, 8)
    schedules += [Schedule(method="speculative", **LANES, num_speculative_tokens=window) for window in windows]
    for window, roots in product(windows, top_k):
        common = {"method": "mirror", **LANES, "num_speculative_tokens": window}
        schedules.append(Schedule(**common, root_source="draft", draft_top_k=roots))
        for layer in EXIT_LAYERS:
            at_exit = {"exit_layer": layer, "exit_top_k": roots}
            schedules.append(Schedule(**common, root_source="exit", **at_exit))
            schedules.append(Schedule(**common, root_source="hybrid", **at_exit, draft_top_k=1))
    return schedules


def made_up_record(
    num_prompts: int = NUM_PROMPTS,
    *,
    num_tokens: int = NUM_TOKENS,
    max_window: int = MAX_WINDOW,
    exit_layers: tuple[int, ...] = EXIT_LAYERS,
) -> AcceptanceRecord:
    """Random texts of which draft and exits know a share."""
    random = np.random.default_rng(0)
    return AcceptanceRecord(
        target="made up",
        drafter="made up",
        dtype="",
        max_window=max_window,
        max_new_tokens=num_tokens,
        exit_layers=exit_layers,
        prompts=tuple(_prompt(random, index, num_tokens, max_window, exit_layers) for index in range(num_prompts)),
    )


def machine(*, contended: bool, exit_layers: tuple[int, ...] = EXIT_LAYERS) -> Profile:
    """Two lanes, costs like those of a small model on two cores."""
    slowed = Contention(lanes=("target", "draft"), slowdown=(1.04, 1.06), source="made up")
    return Profile(
        host={},
        target="made up",
        drafter="made up",
        dtype="",
        num_layers=30,
        lanes=(_lane("target", exit_layers), _lane("draft", exit_layers)),
        links=(LinkProfile(lanes=("target", "draft"), latency_s=5e-5, bytes_per_s=2e9, source="made up"),),
        contention=(slowed,) if contended else (),
        round_overhead_s=1.5e-4,
    )


def pooled(profile: Profile) -> Profile:
    """Both lanes take 50 GB/s, of a memory that has 80."""
    lanes = tuple(
        lane.model_copy(
            update={part: _with_traffic(getattr(lane, part)) for part in ("layer", "lm_head", "draft_step")}
        )
        for lane in profile.lanes
    )
    return profile.model_copy(update={"lanes": lanes, "memory_pool_bytes_per_s": 8e10})


def tensor_parallel(profile: Profile) -> Profile:
    """The target on eight devices, two all-reduces a layer."""
    target, draft = profile.lanes
    group = DeviceGroup(
        num_devices=8,
        latency_s=2e-6,
        bytes_per_s=4.5e11,
        reduced_bytes_per_row=1e4,
        all_reduces={"layer": 2},
        source="made up",
    )
    return profile.model_copy(update={"lanes": (target.model_copy(update={"group": group}), draft)})


def _with_traffic(table: LatencyTable) -> LatencyTable:
    return table.model_copy(update={"bytes_per_call": 5e10 * table.seconds[0][0]})


def _prompt(
    random: np.random.Generator, index: int, num_tokens: int, max_window: int, exit_layers: tuple[int, ...]
) -> PromptRecord:
    text = random.integers(0, VOCABULARY, num_tokens).astype(np.int32)
    ranked = [_ranked(random, text) for _ in range(1 + len(exit_layers))]
    following = np.lib.stride_tricks.sliding_window_view(np.pad(ranked[0][:, 0], (0, max_window)), max_window)
    return PromptRecord(
        name=f"prompt {index}",
        category="",
        prompt_length=PROMPT_LENGTHS[index % len(PROMPT_LENGTHS)],
        text=text,
        rollouts=following[:num_tokens].copy(),
        feature_rollouts=np.zeros((0, max_window), dtype=np.int32),
        alternatives=ranked[0],
        exits=dict(zip(exit_layers, ranked[1:], strict=True)),
    )


def _ranked(random: np.random.Generator, text: np.ndarray) -> np.ndarray:
    """Ids for every position, the text's own first where it is known."""
    ids = np.argsort(random.random((len(text), VOCABULARY)), axis=1)[:, :NUM_IDS].astype(np.int32)
    known = random.random(len(text)) < SHARE_KNOWN
    ids[known, 0] = text[known]
    return ids


def _lane(name: str, exit_layers: tuple[int, ...]) -> LaneProfile:
    return LaneProfile(
        name=name,
        device="cpu",
        dispatch_s=1.2e-4,
        layer=_table(1.2e-3),
        lm_head=_table(5e-3),
        exit={layer: _table(1.5e-3) for layer in exit_layers},
        draft_step=_table(6e-3),
    )


def _table(one_row_s: float) -> LatencyTable:
    rows, contexts = (1, 2, 4, 8, 16, 32, 96, 300), (0, 128, 512, 2048)
    seconds = tuple(tuple(one_row_s * (1 + 0.02 * row + context / 1e4) for context in contexts) for row in rows)
    return LatencyTable(rows=rows, contexts=contexts, seconds=seconds, source="made up")
