"""Cores and threads of a lane's processes: settled before what computes is imported, whose thread pools read them."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Read by the thread pools when they are loaded, so they must be set before."""

SPIN_VARIABLE: Final = "GOMP_SPINCOUNT"
SPIN_COUNT: Final = "3000"
"""How often a thread of a lane looks for the others' work before it sleeps.

Measured on two cores with a target of 135M parameters: threads that spin until their slice of time is over, as is the
default, made a step of two threads 5 to 10 times slower while one other process ran. With 3000 it stays below 3 times,
for a few percent on quiet cores; without any spinning a step takes 1.5 to 2 times as long there.
"""
WAIT_VARIABLES: Final = (SPIN_VARIABLE, "OMP_WAIT_POLICY")
"""A user who has set one of them has decided that already."""


def thread_environment(num_threads: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return what a lane of so many threads has in its environment besides what is `given`."""
    own = dict.fromkeys(THREAD_VARIABLES, str(num_threads))
    if num_threads > 1 and not any(name in given for name in WAIT_VARIABLES):
        own[SPIN_VARIABLE] = SPIN_COUNT
    return own


def pin(cores: Sequence[int], num_threads: int) -> None:
    """Bind this process to its cores (where the system can) and its thread pools to their number."""
    os.environ.update(thread_environment(num_threads, os.environ))
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    # the parent decides when a lane ends: an interrupt from the keyboard reaches the whole group
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def cores_of(cores: Sequence[int], rank: int, num_ranks: int) -> Sequence[int]:
    """Return the cores of a rank of a lane, dealt out as evenly as it goes; of fewer cores than ranks each has all."""
    if len(cores) < num_ranks:
        return cores
    return cores[len(cores) * rank // num_ranks : len(cores) * (rank + 1) // num_ranks]
