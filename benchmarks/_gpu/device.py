"""What is measured of a GPU without any model: its memory, and messages to it and back."""

from __future__ import annotations

import torch

from _gpu.session import Session


def memory(session: Session) -> None:
    """How fast memory is read and written."""
    with session.part("memory") as add:
        count = session.sizes.copied
        source = torch.empty(count, dtype=torch.uint8, device=session.device)
        out = torch.empty_like(source)
        taken_s = session.seconds(lambda: out.copy_(source))
        add({"num_bytes": 2 * count, "seconds": taken_s, "bytes_per_s": 2 * count / taken_s})


def channel(session: Session) -> None:
    """Messages to the device and back."""
    with session.part("channel") as add:
        for count in session.sizes.num_bytes:
            values, there = (torch.zeros(count, dtype=torch.uint8, device=one) for one in ("cpu", session.device))

            def round_trip(values: torch.Tensor = values, there: torch.Tensor = there) -> None:
                there.copy_(values)
                there.cpu()

            add({"num_bytes": count, "round_trip_s": session.clocked(round_trip)})
