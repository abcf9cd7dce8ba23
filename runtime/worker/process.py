"""The process of one lane, or of one rank of it: pinned before what computes is imported."""

import argparse
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from decoding.errors import MirrorsdError

_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Read by the thread pools when they are loaded, so they are set before the process starts."""
_NUMPY_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy's own threads spin for tens of milliseconds after a product, on the cores that a lane computes on.

A draft model scores a prompt's own tokens by such a product. On two cores of a Zen 3, with 1,089 of them, the target's
next pass of 4 rows took 1.6 times as long (130 ms, not 80), and the draft model's next steps 1.8 times.
"""
_SPIN_VARIABLE: Final = "GOMP_SPINCOUNT"
_SPIN_COUNT: Final = "3000"
"""How often a thread of a lane polls for work of the others before it sleeps.

Measured on two cores with a target of 135M parameters: threads that spin until their slice of time is over, as is the
default, made a step of two threads 5 to 10 times slower while one other process ran. With 3000 it stays below 3 times,
for a few percent on quiet cores; without any spinning a step takes 1.5 to 2 times as long there.
"""
_MALLOC_VARIABLE: Final = "GLIBC_TUNABLES"
_HUGE_PAGES: Final = "glibc.malloc.hugetlb=1"
"""Lets malloc ask for huge pages, from which a graph's packed weights are read faster.

Steps of the embedded target in bfloat16 on a Zen 3 took 0.98 times as long in the median (0.90 to 1.09, eight pairs),
its start 1.03 times (0.99 to 1.11, three); its memory was the same.
"""
_PR_SET_PDEATHSIG: Final = 1
"""Of Linux's `prctl`."""


def thread_environment(num_threads: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a lane's threads and memory; how threads wait is left to the user who has set it."""
    own = dict.fromkeys(_THREAD_VARIABLES, str(num_threads)) | _NUMPY_THREADS
    own[_MALLOC_VARIABLE] = given.get(_MALLOC_VARIABLE, _HUGE_PAGES)
    if num_threads > 1 and _SPIN_VARIABLE not in given and "OMP_WAIT_POLICY" not in given:
        own[_SPIN_VARIABLE] = _SPIN_COUNT
    return own


def _cores_of(cores: Sequence[int], rank: int, num_ranks: int) -> Sequence[int]:
    """Return the cores of a rank, dealt out as evenly as possible; if there are fewer than ranks, each has all."""
    if len(cores) < num_ranks:
        return cores
    return cores[len(cores) * rank // num_ranks : len(cores) * (rank + 1) // num_ranks]


def ends_with(parent: int) -> bool:
    """Let Linux kill this process when its parent ends, also if it hangs; return whether the parent is still there."""
    if sys.platform != "linux":
        return True
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def main() -> None:
    """Serve the parent over the socket given by number until it closes its end, or as a rank until the group ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, help="of the parent, which rank 0 alone has")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cores", type=int, nargs="*", default=[])
    parser.add_argument("--device", required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--leader", type=int, help="id of the process of rank 0, which the others end with")
    parser.add_argument("--store", type=int, help="port where rank 0 holds the store of its group")
    options = parser.parse_args()
    if (cores := _cores_of(options.cores, options.rank, options.ranks)) and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    # the parent decides when a lane ends: an interrupt from the keyboard reaches the whole group
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if options.rank == 0:
        _serve(socket.socket(fileno=options.socket), options)
        return
    if not ends_with(options.leader):
        sys.exit("rank 0 has ended before the other ranks had begun")
    from runtime.parallel.local_group import follow

    try:
        follow(options.rank, options.ranks, device=options.device, port=options.store)
    except MirrorsdError as error:
        sys.exit(f"rank {options.rank}: {error}")


def _serve(end: socket.socket, options: argparse.Namespace) -> None:
    """Import what computes on the lane's device, which takes seconds where it is torch, and answer."""
    from runtime.wire.channel import Channel

    if options.ranks > 1:
        from runtime.parallel.local_group import lead

        lead(Channel(end), options.ranks, device=options.device, cores=options.cores, num_threads=options.threads)
        return
    from runtime.backends.lane_device import Device
    from runtime.worker.server import LaneServer

    LaneServer(Channel(end), Device.of_lane(options.device), num_threads=options.threads).serve_process()


if __name__ == "__main__":
    main()
