"""All that needs a GPU, checked and measured in under ten minutes by one command on a bare machine.

    python benchmarks/gpu.py --out gpu.json
    python benchmarks/gpu.py --dry-run --out gpu.json

Needs Python 3.11, torch with CUDA and an NVIDIA GPU, and of this repository `benchmarks/gpu.py`, `benchmarks/_gpu/`,
`runtime/`, `decoding/` and `hwprofiles/models/`; no other package. Weights are random, of the shapes in
`hwprofiles/models`. Without a GPU it says so and exits 2. `--dry-run` does the same on the CPU with tiny shapes: times
of it mean nothing.

Writes one JSON, in SI units: `checks` (captured calls against the decoder on the CPU, and replay against the same calls
without capture), `memory` (bytes a second of a copy, read and written), `layers` (per layer, by rows and context, with
the bytes of weights and of the keys and values of the context, and bytes a second), `heads` (output head alone, and
with the best ids of an exit), `replay` (a replay, and the sum of its kernels), `rounds` (a verification after the
other, and what of it no layer or head ran), `draft` (a step of all layers and the head by branches), `streams` (two
at once against alone), `channel` (round trips of so many bytes). `left_out` has what was not reached in time,
or did not fit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from _gpu.checks import check
from _gpu.draft import draft, streams
from _gpu.session import DRY, Session, Sizes, describe
from _gpu.targets import targets


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and measure everything, and write the JSON; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--minutes", type=float, default=8.0, help="no new part is begun after so many")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU")
    options = parser.parse_args(arguments)
    if not options.dry_run and not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no NVIDIA GPU here: nothing was measured", file=sys.stderr)
        return 2
    device = torch.device("cpu" if options.dry_run else "cuda:0")
    session = Session(device, DRY if options.dry_run else Sizes(), options.minutes)
    session.found["device"] = describe(device, is_dry_run=options.dry_run)
    start_s = time.monotonic()
    with torch.inference_mode():
        for part in (check, memory, channel, draft, streams, targets):
            part(session)
            print(f"{part.__name__}: {time.monotonic() - start_s:.0f} s", flush=True)
    session.found["took_s"] = round(time.monotonic() - start_s, 1)
    options.out.write_text(json.dumps(session.found, indent=1) + "\n", encoding="utf-8")
    print(options.out)
    return 0 if all(one["is_same"] for one in session.found["checks"]) else 1


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


if __name__ == "__main__":
    sys.exit(main())
