"""The process of one lane: pinned to its cores, its number of threads set before torch is imported.

Started by `runtime.lanes.lane` as ``python -m runtime.worker.process``; ends when its parent does.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
from collections.abc import Sequence

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Read by the thread pools when they are loaded, so they must be set before."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the parent over the socket given by number until it closes its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cores", type=int, nargs="*", default=[])
    options = parser.parse_args(arguments)
    pin(options.cores, options.threads)
    serve(socket.socket(fileno=options.socket), options.threads)


def pin(cores: Sequence[int], num_threads: int) -> None:
    """Bind this process to its cores (where the system can) and its thread pools to their number."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(num_threads)
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    # the parent decides when a lane ends: an interrupt from the keyboard reaches the whole group
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def serve(end: socket.socket, num_threads: int) -> None:
    """Load torch, which takes seconds, and answer until the parent is gone."""
    import torch

    from runtime.wire.channel import Channel
    from runtime.worker.server import LaneServer

    torch.set_num_threads(num_threads)
    LaneServer(Channel(end)).serve()


if __name__ == "__main__":
    main()
