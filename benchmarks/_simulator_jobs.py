"""What is timed of the simulator in processes of their own, so that each one's peak memory is its own.

`measured_job` starts one and returns what it took.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from _made_up import LANES, machine, made_up_record

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from planner.search.search import search
from planner.search.space import SearchSpace
from sim.evaluator import Evaluator

LONGEST = 16
WINDOWS = range(4, LONGEST + 1)
LAYERS = tuple(range(1, 29))


class Taken(NamedTuple):
    """What a job took.

    Attributes:
        count: schedules that it predicted.
        rounds: visited.
        process_s: CPU time of its process, without what was only prepared for it.
        wall_s: time on the clock for the same.
        peak_bytes: the most memory that the whole process had.
    """

    count: int
    rounds: int
    process_s: float
    wall_s: float
    peak_bytes: int


class Texts(NamedTuple):
    """Texts of one length."""

    num_prompts: int
    num_tokens: int


def measured_job(job: Callable[[int, Texts], Taken], count: int, texts: Texts) -> Taken:
    """Run a job of this module in a fresh process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(job, count, texts).result()


def searched(count: int, texts: Texts) -> Taken:
    """A search as `planner.search` does it: every schedule is checked, predicted and ranked, and all are kept.

    Schedules are about `count`, by the number of exits.
    """
    space = SearchSpace(
        windows=tuple(range(1, LONGEST + 1)),
        exit_top_k=(1, 2, 3, 4, 6, 8),
        draft_top_k=(1, 2, 3, 4, 6, 8),
        exit_features=(False,),
        uneven_roots=(8, 12, 16),
    )
    layers = LAYERS[: max(1, round(count / 1440))]  # for each: 2 ways round, 16 windows, 6 + 36 even budgets, 3 uneven

    def work(profile: Profile, record: AcceptanceRecord) -> tuple[int, int]:
        found = search(space, profile, record).candidates
        return len(found), sum(one.prediction.num_rounds for one in found)

    return _taken(work, texts, layers)


def predicted(count: int, texts: Texts) -> Taken:
    """So many different schedules one after the other, none of them kept."""

    def work(profile: Profile, record: AcceptanceRecord) -> tuple[int, int]:
        evaluator = Evaluator(profile, record)
        return count, sum(evaluator.predict(one).num_rounds for one in islice(different_schedules(), count))

    return _taken(work, texts, LAYERS if count > len(WINDOWS) else LAYERS[:1])


def different_schedules() -> Iterator[Schedule]:
    """No two alike: all windows and exits, with ever other budgets of roots."""
    for number in range(9**4 - 1):
        digits = [(number + 1) // 9**place % 9 for place in range(4)]
        for layer in LAYERS:
            for window in WINDOWS:
                roots = tuple(digits[row % 4] for row in range(window + 1))
                yield Schedule(
                    method="mirror",
                    **LANES,
                    num_speculative_tokens=window,
                    root_source="exit",
                    exit_layer=layer,
                    roots_per_row=roots,
                )


def _taken(
    work: Callable[[Profile, AcceptanceRecord], tuple[int, int]], texts: Texts, layers: tuple[int, ...]
) -> Taken:
    record = made_up_record(texts.num_prompts, num_tokens=texts.num_tokens, max_window=LONGEST, exit_layers=layers)
    profile = machine(contended=True, exit_layers=layers)
    process_s, wall_s = time.process_time(), time.perf_counter()
    count, rounds = work(profile, record)
    return Taken(count, rounds, time.process_time() - process_s, time.perf_counter() - wall_s, peak_bytes())


def peak_bytes() -> int:
    """The most memory that this process had so far."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
