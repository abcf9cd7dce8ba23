"""Visits every part of every lane in turn, again and again, and keeps what each visit took.

Parts are whole operations wherever possible: a layer run alone stays in the processor's cache, in a whole pass it
never does. Taking turns (A B C A B C, then backwards) lets a drift of the machine hit all parts alike.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import median
from typing import NamedTuple

from calibrate.profiling.time_budget import Passes
from decoding.messages import ExitSignal
from runtime.lanes.lane import Lane
from runtime.wire import codec
from runtime.wire.channel import Block
from runtime.wire.measurement import Measurement
from runtime.wire.operations import Measure, Ping


class Cell(NamedTuple):
    """One part at one size on one lane."""

    lane: str
    measurement: Measurement


@dataclass(slots=True)
class Samples:
    """What was measured.

    Attributes:
        seconds: times of every cell, in the order taken.
        dispatch_s: by lane, what visits took beyond the lane's own time: sending, waking up, answering.
    """

    seconds: defaultdict[Cell, list[float]] = field(default_factory=lambda: defaultdict(list))
    dispatch_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def visit_in_turn(
    lanes: Mapping[str, Lane],
    cells: Sequence[Cell],
    *,
    passes: Passes,
    progress: Callable[[float], None] = lambda _share: None,
) -> Samples:
    """Measure all cells once in every pass, every second pass backwards, neighbours on different lanes.

    Raises:
        LaneError: a lane is lost, or has not loaded what is to be timed.
    """
    samples = Samples()
    order = _in_turn(cells)
    for index in passes:
        for place, cell in enumerate(order if index % 2 == 0 else order[::-1]):
            progress((index + place / len(order)) / passes.count)
            seconds, dispatch_s = visit(lanes[cell.lane], cell.measurement)
            samples.seconds[cell] += seconds
            samples.dispatch_s[cell.lane].append(dispatch_s)
    return samples


def visit(lane: Lane, measurement: Measurement) -> tuple[list[float], float]:
    """Times of the part, and what the visit took beyond the lane's own time."""
    start_s = time.perf_counter()
    answer = lane.request(Measure(measurement=measurement)).result()
    wall_s = time.perf_counter() - start_s
    return answer.value, wall_s - (answer.end_s - answer.start_s)


def message_costs(lane: Lane, num_rows: int, num_candidates: int, features: int, repeats: int) -> list[float]:
    """Seconds that one hop of an exit message costs beyond one of an empty message: without and with features.

    A ping that carries the message is compared with one that does not, in turn. `features` is their width.
    """
    signal = ExitSignal(((0,) * num_candidates,) * num_rows, ((0.0,) * num_candidates,) * num_rows)
    features_block = Block("bfloat16", (num_rows, features), bytes(2 * num_rows * features))
    loads = [(), codec.write(signal).blocks, codec.write(signal._replace(features=features_block)).blocks]
    pings = [Ping(load=tuple(load)) for load in loads]
    times = [[_round_trip_s(lane, ping) for ping in pings] for _ in range(repeats)]
    empty_s, *loaded_s = map(median, zip(*times, strict=True))
    return [max(0.0, seconds - empty_s) for seconds in loaded_s]


def _round_trip_s(lane: Lane, ping: Ping) -> float:
    start_s = time.perf_counter()
    lane.request(ping).result()
    return time.perf_counter() - start_s


def _in_turn(cells: Sequence[Cell]) -> list[Cell]:
    """One cell of each lane after the other; lanes with fewer cells run out first."""
    by_lane: defaultdict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        by_lane[cell.lane].append(cell)
    return [cell for cells_of_turn in zip_longest(*by_lane.values()) for cell in cells_of_turn if cell is not None]
