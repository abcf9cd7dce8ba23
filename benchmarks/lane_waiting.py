"""How long threads of a lane should spin before they sleep: a two-thread lane alone, and next to one busy process.

    python benchmarks/lane_waiting.py --cores 0 1

libgomp's threads spin when they wait for each other. On quiet cores that is the fastest way to wait; next to another
process each wait lasts until that one's time slice is over. Lanes with different `GOMP_SPINCOUNT` take turns, so that a
machine that changes its pace changes it for all; each turn is timed with and without a busy process. Writes
benchmarks/results/lane-waiting.json.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any, Final

import _common

from hwprofiles.host import describe_host
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.models.model_folder import resolve_model
from runtime.wire.measurement import Measurement
from runtime.wire.operations import Measure

LIBRARY: Final = "300000"
"""What libgomp does on its own."""
SPIN_COUNTS: Final = (LIBRARY, "0", "1000", "3000", "10000")
"""Lanes take 3000 (`runtime.worker.process`)."""
VARIABLE: Final = "GOMP_SPINCOUNT"
STEP: Final = Measurement(part="verify", rows=1, context=128, repeats=9, warm_up=2)


def main() -> None:
    """Measure and write the result file."""
    parser = _common.arguments(__doc__)
    parser.add_argument("--cores", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--output", type=Path, default=_common.RESULTS / "lane-waiting.json")
    options = parser.parse_args()
    target = resolve_model(_common.EMBEDDED)
    with ExitStack() as stack:
        engines = {count: stack.enter_context(_engine(target, options.cores, count)) for count in SPIN_COUNTS}
        seconds: dict[str, dict[str, list[float]]] = {
            state: {count: [] for count in SPIN_COUNTS} for state in ("alone", "next to a busy process")
        }
        for turn in range(options.turns):
            for state, by_count in seconds.items():
                with _common.busy_process() if state != "alone" else nullcontext():
                    for count, engine in _rotated(list(engines.items()), turn):
                        by_count[count].append(_step_s(engine))
            print(f"turn {turn + 1} of {options.turns}", flush=True)
    _common.write_result(options.output, _result(seconds, options.cores))
    print(options.output.read_text(encoding="utf-8"))


@contextmanager
def _engine(target: Path, cores: Sequence[int], spin_count: str) -> Iterator[Engine]:
    """An engine whose one lane is started with a spin count of its own."""
    before = os.environ.pop(VARIABLE, None)
    os.environ[VARIABLE] = spin_count
    lane = LaneSpec(name="lane", cores=tuple(cores), num_threads=len(cores))
    with Engine(target, lanes=[lane]) as engine:
        engine.load_target("lane")
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before
        yield engine


def _step_s(engine: Engine) -> float:
    seconds: Sequence[float] = engine.lane("lane").request(Measure(measurement=STEP)).result().value
    return median(seconds)


def _rotated(items: list[tuple[str, Engine]], turn: int) -> list[tuple[str, Engine]]:
    place = turn % len(items)
    return items[place:] + items[:place]


def _result(seconds: dict[str, dict[str, list[float]]], cores: Sequence[int]) -> dict[str, Any]:
    """Times of all turns, and ratios of times taken in the same turn, which a change of pace does not move."""
    alone, busy = seconds.values()

    def spread(ratios: list[float]) -> dict[str, float]:
        return {"median": median(ratios), "least": min(ratios), "most": max(ratios)}

    return {
        "platform": describe_host(),
        "target": _common.EMBEDDED,
        "measured": _common.measured(resolve_model(_common.EMBEDDED)),
        "cores": list(cores),
        "step": "a verification of one row",
        "seconds": seconds,
        "alone_over_library": {
            count: spread([one / base for one, base in zip(alone[count], alone[LIBRARY], strict=True)])
            for count in alone
        },
        "busy_over_library_alone": {
            count: spread([one / base for one, base in zip(busy[count], alone[LIBRARY], strict=True)])
            for count in alone
        },
        "busy_over_alone": {
            count: spread([one / base for one, base in zip(busy[count], alone[count], strict=True)]) for count in alone
        },
    }


if __name__ == "__main__":
    main()
