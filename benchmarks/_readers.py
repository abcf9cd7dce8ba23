"""How fast cores read memory alone and at once: what lanes that do little else can overlap."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch

from decoding.metrics import overlap_efficiency

_NUM_BYTES = 256_000_000
"""More than any cache of a CPU holds."""


def readers(cores: Sequence[int], *, turns: int, repeats: int = 40) -> dict[str, Any]:
    """Two cores, each reading memory of its own, alone and side by side in turns.

    Returns:
        Bytes per second of each alone and of both, medians, and the `overlap_efficiency` of such readers.
    """
    ends, processes = [], []
    for core in cores:
        here, there = get_context("spawn").Pipe()
        processes.append(get_context("spawn").Process(target=_read, args=(there, core, repeats), daemon=True))
        processes[-1].start()
        here.recv()
        ends.append(here)
    rows = [(_wall_s(ends[:1]), _wall_s(ends[1:]), _wall_s(ends)) for _ in range(turns)]
    for process in processes:
        process.terminate()
        process.join()
    first_s, second_s, both_s = map(median, zip(*rows, strict=True))
    read = repeats * _NUM_BYTES
    return {
        "alone_bytes_per_s": [read / first_s, read / second_s],
        "together_bytes_per_s": 2 * read / both_s,
        "overlap_efficiency": median(overlap_efficiency(*row) for row in rows),
    }


def _wall_s(ends: Sequence[Connection]) -> float:
    start_s = time.perf_counter()
    for end in ends:
        end.send(None)
    for end in ends:
        end.recv()
    return time.perf_counter() - start_s


def _read(end: Connection, core: int, repeats: int) -> None:
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    memory = torch.ones(_NUM_BYTES // 4)
    end.send(None)
    while True:
        end.recv()
        for _ in range(repeats):
            memory.sum()
        end.send(None)
