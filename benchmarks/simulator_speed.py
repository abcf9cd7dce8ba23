"""Speed of both simulators, on one core of this machine, for artificial costs and texts, next to the goals.

    python benchmarks/simulator_speed.py            (three to four minutes on a quiet machine)
    python benchmarks/simulator_speed.py --quick    (all of it once and small: whether it works)

The event world is timed by schedule: two lanes with a link and a memory that both share, with a link and measured
slowdowns, and a target on eight devices; rounds are written, spans are not. The array world is timed over some hundred
schedules together: with what schedules share kept from before, and with everything looked up anew. All these cases are
repeated in turns, so that a machine that changes its speed changes it for all of them; each repeat has its CPU time and
its wall time, and figures are medians by CPU time.

A search of ten thousand schedules over 240 prompts runs in a process of its own, with its peak memory. How cost grows
is measured likewise, from sizes to ten times as large ones, schedules and prompts apart. A million schedules take
several minutes: `--schedules 1000000` measures them too. Writes benchmarks/results/simulator_speed.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from _common import RESULTS, arguments, formats, measured, write_result
from _made_up import (
    NUM_PROMPTS,
    NUM_TOKENS,
    SCHEDULES,
    machine,
    made_up_record,
    pooled,
    search_space,
    tensor_parallel,
)
from _simulator_jobs import Taken, Texts, measured_job, predicted, searched

from decoding.schedule import Schedule
from hwprofiles.host import describe_host
from hwprofiles.profile import Profile
from sim.acceptance.replay import Replay
from sim.evaluator import evaluate
from sim.world import simulate

POOL, SLOWED, EIGHT = "memory pool and link", "slowdowns and link", "eight devices"
ARRAYS, ARRAYS_ANEW = "arrays", "arrays, everything looked up anew"
ROUNDS_PER_S = {POOL: 30_000, EIGHT: 3_000, ARRAYS: 4_000_000}
SEARCH_S, SEARCH_BYTES = 120.0, 2e9
EXPONENT = 1.1
"""Of cost as a power of the number of schedules or prompts: one is linear."""


class Sizes(NamedTuple):
    """How much is measured.

    Attributes:
        repeats: of every case, in turns.
        runs: of every process.
        searched: schedules of the search, and its texts.
        schedules: how many are predicted, over `few_texts`.
        prompts: how many there are; `few_schedules` are predicted over them.
    """

    repeats: int
    runs: int
    searched: tuple[int, Texts]
    schedules: tuple[int, ...]
    few_texts: Texts
    prompts: tuple[int, ...]
    few_schedules: int


FULL = Sizes(
    repeats=9,
    runs=2,
    searched=(10_000, Texts(240, NUM_TOKENS)),
    schedules=(1_000, 10_000, 100_000),
    few_texts=Texts(4, 32),
    prompts=(1_000, 10_000, 100_000),
    few_schedules=4,
)
QUICK = Sizes(
    repeats=1,
    runs=1,
    searched=(1440, Texts(4, 16)),
    schedules=(10, 100),
    few_texts=Texts(2, 8),
    prompts=(10, 100),
    few_schedules=2,
)
TOKENS_OF_MANY = 32
"""New tokens of each of many prompts: their record has to fit into memory."""


def main() -> None:
    """Time both simulators and write the result file."""
    options = _options()
    sizes = QUICK if options.quick else FULL
    sizes = sizes._replace(schedules=(*sizes.schedules, *options.schedules))
    cases = measured_cases(sizes.repeats)
    search = [measured_job(searched, *sizes.searched) for _ in range(sizes.runs)]
    growth = {
        "schedules": grown(sizes.schedules, lambda size: measured_job(predicted, size, sizes.few_texts), sizes.runs),
        "prompts": grown(
            sizes.prompts,
            lambda size: measured_job(predicted, sizes.few_schedules, Texts(size, TOKENS_OF_MANY)),
            sizes.runs,
        ),
    }
    result = {
        "host": describe_host(),
        "measured": measured(),
        "formats": formats(),
        "prompts": NUM_PROMPTS,
        "tokens_per_prompt": NUM_TOKENS,
        "goals": list(goals(cases, search, growth)),
        "cases": cases,
        "search": {
            "prompts": sizes.searched[1].num_prompts,
            "tokens_per_prompt": sizes.searched[1].num_tokens,
            "runs": [one._asdict() for one in search],
        },
        "growth": growth,
        "growth_texts": {
            "schedules": f"{sizes.few_texts.num_prompts} prompts, {sizes.few_texts.num_tokens} tokens each",
            "prompts": f"{sizes.few_schedules} schedules, {TOKENS_OF_MANY} tokens each",
        },
    }
    print(json.dumps(result["goals"], indent=2))
    write_result(options.output, result)


def measured_cases(repeats: int) -> dict[str, dict[str, Any]]:
    """Rounds per second of every case, by CPU time and by wall time, all repeats of it."""
    work = dict(_cases())
    rounds = {name: one() for name, one in work.items()}
    found: dict[str, dict[str, Any]] = {
        name: {"rounds": count, "rounds_per_cpu_s": [], "rounds_per_wall_s": []} for name, count in rounds.items()
    }
    for _ in range(repeats):
        for name, one in work.items():
            process_s, wall_s = time.process_time(), time.perf_counter()
            one()
            found[name]["rounds_per_cpu_s"].append(round(rounds[name] / (time.process_time() - process_s)))
            found[name]["rounds_per_wall_s"].append(round(rounds[name] / (time.perf_counter() - wall_s)))
    return found


def _cases() -> Iterator[tuple[str, Callable[[], int]]]:
    """What is done in every repeat, and returns how many rounds that were."""
    record, free, slowed = made_up_record(), machine(contended=False), machine(contended=True)
    replay, space = Replay(record), search_space()

    def events(schedule: Schedule, profile: Profile) -> int:
        return sum(len(trace.rounds) for trace in simulate(schedule, profile, replay, trace=False))

    def arrays(profile: Profile, *, anew: bool) -> int:
        return sum(found.num_rounds for found in evaluate(space, profile, record if anew else replay))

    for kind, profile in ((POOL, pooled(free)), (SLOWED, slowed), (EIGHT, tensor_parallel(free))):
        for name, schedule in SCHEDULES.items():
            yield f"events, {kind}: {name}", lambda one=schedule, profile=profile: events(one, profile)
    for kind, profile in (("free", free), ("slowdowns", slowed), ("memory pool", pooled(free))):
        yield f"{ARRAYS}: {kind}", lambda profile=profile: arrays(profile, anew=False)
    yield f"{ARRAYS_ANEW}: slowdowns", lambda: arrays(slowed, anew=True)


def grown(sizes: tuple[int, ...], run: Callable[[int], Taken], num_runs: int) -> list[dict[str, Any]]:
    """What ever larger sizes take, all sizes in every turn."""
    found: list[list[Taken]] = [[] for _ in sizes]
    for _ in range(num_runs):
        for size, runs in zip(sizes, found, strict=True):
            runs.append(run(size))
    return [{"size": size, "runs": [one._asdict() for one in runs]} for size, runs in zip(sizes, found, strict=True)]


def goals(
    cases: dict[str, dict[str, Any]], search: list[Taken], growth: dict[str, list[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """Every goal with what was found; by CPU time, and the slower runs where there are several."""
    for kind, least in ROUNDS_PER_S.items():
        for name, case in cases.items():
            if name.startswith((f"events, {kind}:", f"{kind}:")):
                found = round(median(case["rounds_per_cpu_s"]))
                yield {"of": name, "rounds_per_s": found, "at_least": least, "is_reached": found >= least}
    count = min(one.count for one in search)
    seconds, peak = max(one.process_s for one in search), max(one.peak_bytes for one in search)
    yield {"of": f"search of {count}", "seconds": seconds, "at_most": SEARCH_S, "is_reached": seconds <= SEARCH_S}
    yield {"of": f"search of {count}", "bytes": peak, "at_most": SEARCH_BYTES, "is_reached": peak <= SEARCH_BYTES}
    for name, sizes in growth.items():
        power = exponent(sizes)
        most = sizes[-1]["size"]
        yield {
            "of": f"growth to {most} {name}",
            "exponent": power,
            "at_most": EXPONENT,
            "is_reached": power <= EXPONENT,
        }


def exponent(sizes: list[dict[str, Any]]) -> float:
    """Of cost as a power of the size: the slope of a line through all sizes, both on scales of logarithms."""
    seconds = [min(one["process_s"] for one in size["runs"]) for size in sizes]
    return float(np.polyfit(np.log([size["size"] for size in sizes]), np.log(seconds), 1)[0])


def _options() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="all of it once and small")
    parser.add_argument("--schedules", type=int, nargs="*", default=[], help="more sizes of growth, such as 1000000")
    parser.add_argument("--output", type=Path, default=RESULTS / "simulator_speed.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
