"""Rounds per second of both simulators, on one core of this machine, for artificial costs and texts.

    python benchmarks/simulator_speed.py

The event world is timed per schedule: with lanes that leave each other alone, with lanes that slow each other, with
lanes on one memory pool, and with a target on eight devices; always over a link, and rounds are written, spans are not.
The evaluator is timed over all schedules together, once with everything looked up anew and once with what schedules
share kept. Each figure is the best of several repeats. Writes benchmarks/results/simulator_speed.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
from _common import RESULTS, arguments, formats, measured, write_result

from decoding.record import AcceptanceRecord, PromptRecord
from decoding.schedule import Schedule
from hwprofiles.device_group import DeviceGroup
from hwprofiles.host import describe_host
from hwprofiles.profile import Contention, LaneProfile, LatencyTable, LinkProfile, Profile
from sim.acceptance.replay import Replay
from sim.evaluator import evaluate
from sim.world import simulate

NUM_PROMPTS, NUM_TOKENS, MAX_WINDOW, VOCABULARY = 40, 128, 8, 64
EXIT_LAYERS = (15, 20)
SHARE_KNOWN = 0.6
"""Of the next tokens, by the draft and by an exit."""

LANES = {"target_lane": "target", "draft_lane": "draft"}
EVENT_SCHEDULES = {
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


def main() -> None:
    """Time both simulators and write the result file."""
    options = _options()
    replay, free = Replay(made_up_record()), machine(contended=False)
    contended = machine(contended=True)
    schedules = search_space()
    result = {
        "host": describe_host(),
        "measured": measured(),
        "formats": formats(),
        "prompts": NUM_PROMPTS,
        "tokens_per_prompt": NUM_TOKENS,
        "repeats": options.repeats,
        "event_world_rounds_per_s": {
            name: events_per_s(schedule, free, replay, options.repeats) for name, schedule in EVENT_SCHEDULES.items()
        },
        "event_world_with_contention_rounds_per_s": {
            name: events_per_s(schedule, contended, replay, options.repeats)
            for name, schedule in EVENT_SCHEDULES.items()
            if schedule.method == "mirror"
        },
        "event_world_on_a_memory_pool_rounds_per_s": {
            name: events_per_s(schedule, pooled(free), replay, options.repeats)
            for name, schedule in EVENT_SCHEDULES.items()
        },
        "event_world_with_eight_devices_rounds_per_s": {
            name: events_per_s(schedule, tensor_parallel(free), replay, options.repeats)
            for name, schedule in EVENT_SCHEDULES.items()
        },
        "evaluator_schedules": len(schedules),
        "evaluator_rounds_per_s": {
            name: evaluated_per_s(schedules, profile, replay, options.repeats)
            for name, profile in (("without contention", free), ("with contention", contended))
        },
        "evaluator_first_time_rounds_per_s": evaluated_per_s(schedules, contended, None, options.repeats),
    }
    print(json.dumps(result, indent=2))
    write_result(options.output, result)


def events_per_s(schedule: Schedule, profile: Profile, replay: Replay, repeats: int) -> int:
    """Rounds that the event world plays in a second."""
    traces = simulate(schedule, profile, replay, trace=False)
    num_rounds = sum(len(trace.rounds) for trace in traces)
    return round(num_rounds / best_s(lambda: simulate(schedule, profile, replay, trace=False), repeats))


def evaluated_per_s(schedules: list[Schedule], profile: Profile, replay: Replay | None, repeats: int) -> int:
    """Rounds that the evaluator visits in a second; without a replay it makes one each time."""
    record = made_up_record()
    num_rounds = sum(found.num_rounds for found in evaluate(schedules, profile, replay or record))
    return round(num_rounds / best_s(lambda: evaluate(schedules, profile, replay or record), repeats))


def best_s(work: Callable[[], object], repeats: int) -> float:
    """The shortest of several times."""
    times = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - start_s)
    return min(times)


def search_space() -> list[Schedule]:
    """Some hundred schedules of all kinds."""
    schedules = [EVENT_SCHEDULES["autoregressive"]]
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


def made_up_record() -> AcceptanceRecord:
    """Random texts of which draft and exits know a share."""
    random = np.random.default_rng(0)
    prompts = tuple(_prompt(random, index) for index in range(NUM_PROMPTS))
    return AcceptanceRecord(
        target="made up",
        drafter="made up",
        dtype="",
        max_window=MAX_WINDOW,
        max_new_tokens=NUM_TOKENS,
        exit_layers=EXIT_LAYERS,
        prompts=prompts,
    )


def machine(*, contended: bool) -> Profile:
    """Two lanes, costs like those of a small model on two cores."""
    slowed = Contention(lanes=("target", "draft"), slowdown=(1.04, 1.06), source="made up")
    return Profile(
        host={},
        target="made up",
        drafter="made up",
        dtype="",
        num_layers=30,
        lanes=(_lane("target"), _lane("draft")),
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


def _prompt(random: np.random.Generator, index: int) -> PromptRecord:
    text = random.integers(0, VOCABULARY, NUM_TOKENS).astype(np.int32)
    ranked = [_ranked(random, text) for _ in range(1 + len(EXIT_LAYERS))]
    following = np.lib.stride_tricks.sliding_window_view(np.pad(ranked[0][:, 0], (0, MAX_WINDOW)), MAX_WINDOW)
    return PromptRecord(
        name=f"prompt {index}",
        category="",
        prompt_length=20 + index,
        text=text,
        rollouts=following[:NUM_TOKENS].copy(),
        feature_rollouts=np.zeros((0, MAX_WINDOW), dtype=np.int32),
        alternatives=ranked[0],
        exits=dict(zip(EXIT_LAYERS, ranked[1:], strict=True)),
    )


def _ranked(random: np.random.Generator, text: np.ndarray) -> np.ndarray:
    """Nine ids for every position, the text's own first where it is known."""
    ids = np.argsort(random.random((NUM_TOKENS, VOCABULARY)), axis=1)[:, :9].astype(np.int32)
    known = random.random(NUM_TOKENS) < SHARE_KNOWN
    ids[known, 0] = text[known]
    return ids


def _lane(name: str) -> LaneProfile:
    return LaneProfile(
        name=name,
        device="cpu",
        dispatch_s=1.2e-4,
        layer=_table(1.2e-3),
        lm_head=_table(5e-3),
        exit={layer: _table(1.5e-3) for layer in EXIT_LAYERS},
        draft_step=_table(6e-3),
    )


def _table(one_row_s: float) -> LatencyTable:
    rows, contexts = (1, 2, 4, 8, 16, 32, 96), (0, 128, 512)
    seconds = tuple(tuple(one_row_s * (1 + 0.02 * row + context / 1e4) for context in contexts) for row in rows)
    return LatencyTable(rows=rows, contexts=contexts, seconds=seconds, source="made up")


def _options() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--output", type=Path, default=RESULTS / "simulator_speed.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
