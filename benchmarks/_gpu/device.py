"""What is measured of a GPU without any model: its memory, and messages to it and back."""

from __future__ import annotations

import torch

from _gpu.session import Session
from runtime.backends.cuda.capture import Download, Upload


def memory(session: Session) -> None:
    """How fast memory is read and written."""
    with session.part("memory") as add:
        count = session.sizes.copied
        source = torch.empty(count, dtype=torch.uint8, device=session.device)
        out = torch.empty_like(source)
        taken_s = session.seconds(lambda: out.copy_(source))
        add({"num_bytes": 2 * count, "seconds": taken_s, "bytes_per_s": 2 * count / taken_s})


def channel(session: Session) -> None:
    """Pinned messages to the device and back."""
    with session.part("channel") as add:
        download = Download(session.device)
        for count in session.sizes.num_bytes:
            upload, values = Upload((count,), torch.uint8, session.device), torch.zeros(count, dtype=torch.uint8)

            def round_trip(upload: Upload = upload, values: torch.Tensor = values) -> None:
                upload.send(values)
                download.fetch(upload.values)

            add({"num_bytes": count, "round_trip_s": session.clocked(round_trip)})
