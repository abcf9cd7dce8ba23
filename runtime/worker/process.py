"""The process of one lane, or of one rank of it: pinned, and its threads set before what computes is imported."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Sequence

from decoding.errors import MirrorsdError
from runtime.worker.pinning import cores_of, pin


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the parent over the socket given by number until it closes its end, or as a rank until the group ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, help="of the parent, which rank 0 alone has")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cores", type=int, nargs="*", default=[])
    parser.add_argument("--device", required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--store", type=int, help="port where rank 0 holds the store of its group")
    options = parser.parse_args(arguments)
    pin(cores_of(options.cores, options.rank, options.ranks), options.threads)
    if options.rank == 0:
        serve(socket.socket(fileno=options.socket), options)
        return
    from runtime.parallel.local_group import follow

    try:
        follow(options.rank, options.ranks, device=options.device, port=options.store)
    except MirrorsdError as error:
        sys.exit(f"rank {options.rank}: {error}")


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
