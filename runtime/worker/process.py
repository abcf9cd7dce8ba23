"""The program of a lane's process, or of one of its ranks: pins itself to cores before it imports a library."""

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
"""Thread pools read them when they are loaded, so they are set before the process starts."""
_NUMPY_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""After a product, numpy's threads would spin for tens of milliseconds on the cores of the lane.

A draft model computes logits of prompt tokens by such a product. On two cores of a Zen 3, with 1,089 tokens, the
target's next pass of 4 rows took 1.6 times as long (130 ms, not 80), and the draft model's next steps 1.8 times.
"""
_SPIN_VARIABLE: Final = "GOMP_SPINCOUNT"
_SPIN_COUNT: Final = "3000"
"""How often a thread of a lane polls for work before it sleeps.

Measured on two cores with a target of 135M parameters: threads that spin until their time slice ends, which is the
default, made a step of two threads 5 to 10 times slower while one other process ran. With 3000 it is less than 3 times
slower, at the cost of a few percent on idle cores; without spinning, a step takes 1.5 to 2 times as long on these.
"""
_MALLOC_VARIABLE: Final = "GLIBC_TUNABLES"
_HUGE_PAGES: Final = "glibc.malloc.hugetlb=1"
"""Makes malloc ask for huge pages, from which a graph's packed weights are read faster.

Steps of the default model in bfloat16 on a Zen 3 took 0.98 times as long in the median (0.90 to 1.09, eight pairs), its
start 1.03 times (0.99 to 1.11, three); its memory was the same.
"""
_PR_SET_PDEATHSIG: Final = 1
"""The option of Linux's `prctl` for a signal at the parent's death."""


def thread_environment(num_threads: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for a lane's threads and memory; a user's settings of spinning are kept."""
    variables = dict.fromkeys(_THREAD_VARIABLES, str(num_threads)) | _NUMPY_THREADS
    variables[_MALLOC_VARIABLE] = given.get(_MALLOC_VARIABLE, _HUGE_PAGES)
    if num_threads > 1 and _SPIN_VARIABLE not in given and "OMP_WAIT_POLICY" not in given:
        variables[_SPIN_VARIABLE] = _SPIN_COUNT
    return variables


def _cores_of(cores: Sequence[int], rank: int, num_ranks: int) -> Sequence[int]:
    """Return the cores of a rank, divided as evenly as possible; with fewer cores than ranks, each rank has all."""
    if len(cores) < num_ranks:
        return cores
    return cores[len(cores) * rank // num_ranks : len(cores) * (rank + 1) // num_ranks]


def ends_with(parent: int) -> bool:
    """Make Linux kill this process, even a hanging one, when its parent ends; return whether the parent still runs."""
    if sys.platform != "linux":
        return True
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def main() -> None:
    """Serve the parent over a socket until the parent closes it, or run as a further rank until the group ends."""
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
    # Ctrl-C reaches all processes of the terminal, but the parent decides when a lane ends
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
    """Import the library of the lane's device, which takes seconds for torch, and answer requests."""
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
