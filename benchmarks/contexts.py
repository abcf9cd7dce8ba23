"""What a pass of one row costs compiled lanes over contexts: a staircase, whose steps are the numbers of KV slots.

    python benchmarks/contexts.py

Every size is timed at the first and the last context that it serves. `halves` compares what sizes halfway between
doublings take with the next doubling, which would serve their contexts without them. Contexts take turns, lanes within
them. Writes benchmarks/results/contexts.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any, Final

import _common

from mirrorsd.model_pair import find_pair
from runtime.backends.lane_device import Device
from runtime.lanes.lane import Lane, LaneSpec
from runtime.wire.measurement import Measurement
from runtime.worker.server import LaneServer

SPECS: Final = (
    LaneSpec(name="openvino:CPU@0", cores=(0,), num_threads=1),
    LaneSpec(name="openvino:CPU", cores=(0, 1), num_threads=2),
)
DEVICE: Final = Device.of_lane("openvino:CPU")
SIZES: Final = DEVICE.slot_sizes(4000)
LAST: Final = {size: size - DEVICE.spare_slots - 1 for size in SIZES}
"""The largest context of a row that runs over so many slots."""
CONTEXTS: Final = (32, *sorted(context + more for context in LAST.values() for more in (0, 1)))[:-1]
REPEATS: Final = 5


def main() -> None:
    """Measure and write the result file."""
    options = _common.arguments(__doc__, out=_common.RESULTS / "contexts.json", rounds=7).parse_args()
    pair = find_pair(_common.EMBEDDED, heads=(), dtype="bfloat16")
    lanes = {spec.name: Lane(spec) for spec in SPECS}

    def milliseconds(place: tuple[int, str], _: int) -> float:
        context, name = place
        work = Measurement(part="verify", rows=1, context=context, repeats=REPEATS, warm_up=1)
        return 1e3 * median(lanes[name].measure(work))

    try:
        for lane in lanes.values():
            lane.start()
            lane.request(LaneServer.load_target, pair.target_folder, None, "bfloat16").result()
        taken = _common.in_rounds(list(product(CONTEXTS, lanes)), milliseconds, options.rounds, warm_up=1)
    finally:
        for lane in lanes.values():
            lane.close()
    _common.print_result(options.out, _common.facts(pair) | {"lanes": {name: found(taken, name) for name in lanes}})


def found(taken: Mapping[tuple[int, str], Sequence[float]], name: str) -> dict[str, Any]:
    """Return quartiles of the milliseconds at every context, and what halves save in the rounds they share."""

    def over(size: int) -> list[float]:
        rounds = [taken[context, name] for context in CONTEXTS if DEVICE.num_slots(context + 1) == size]
        return [sum(one) / len(one) for one in zip(*rounds, strict=True)]

    halves = {
        size: [less / more for less, more in zip(over(size), over(4 * size // 3), strict=True)]
        for size in SIZES
        if size % 3 == 0 and 4 * size // 3 in SIZES
    }
    return {
        "milliseconds": {
            str(context): {"slots": DEVICE.num_slots(context + 1), **_common.quartiles(taken[context, name], 2)}
            for context in CONTEXTS
        },
        "halves": {str(size): _common.quartiles(ratios, 3) for size, ratios in halves.items()},
    }


if __name__ == "__main__":
    main()
