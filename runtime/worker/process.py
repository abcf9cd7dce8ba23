"""The process of one lane: pinned to its cores, its number of threads set before what computes is imported.

Started by `runtime.lanes.lane` as ``python -m runtime.worker.process``; ends when its parent does.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Sequence

from runtime.worker.pinning import cores_of, pin


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the parent over the socket given by number until it closes its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cores", type=int, nargs="*", default=[])
    parser.add_argument("--device", required=True)
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args(arguments)
    pin(cores_of(options.cores, 0, options.ranks), options.threads)
    serve(socket.socket(fileno=options.socket), options)


def serve(end: socket.socket, options: argparse.Namespace) -> None:
    """Import what computes on the lane's device, which takes seconds where it is torch, and answer."""
    from runtime.wire.channel import Channel

    if options.ranks > 1:
        from runtime.parallel.local_group import lead

        lead(Channel(end), options.ranks, device=options.device, cores=options.cores, num_threads=options.threads)
        return
    from runtime.worker.server import LaneServer

    LaneServer(Channel(end), num_threads=options.threads).serve_on(options.device)


if __name__ == "__main__":
    main()
