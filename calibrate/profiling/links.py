"""What messages cost on their way from the target's lane to the draft's."""

from __future__ import annotations

import time
from statistics import fmean
from typing import Final

from decoding.messages import ExitSignal
from hwprofiles.profile import BYTES_PER_CANDIDATE, LinkProfile
from runtime.lanes.lane import Lane
from runtime.wire import codec
from runtime.wire.channel import Block
from runtime.wire.operations import Ping

_ROWS: Final = 5
_CANDIDATES: Final = 9
_LEAST_WIDTH: Final = 1024
"""Numbers per row: a smaller payload would cost too little to measure the bandwidth."""
_REPEATS: Final = 40
_HOPS: Final = 2
"""An exit message goes from the target's lane to the driver, and from there to the draft's."""


def message_costs(lane: Lane, feature_width: int) -> tuple[float, float]:
    """Return the mean seconds that an exit message costs per hop beyond an empty one: without features and with."""
    signal = ExitSignal(((0,) * _CANDIDATES,) * _ROWS, ((0.0,) * _CANDIDATES,) * _ROWS)
    features = Block("bfloat16", (_ROWS, max(feature_width, _LEAST_WIDTH)), bytes(_features_bytes(feature_width)))
    loads = [(), codec.write(signal).blocks, codec.write(signal._replace(features=features)).blocks]
    pings = [Ping(load=tuple(load)) for load in loads]
    times = [[_round_trip_s(lane, ping) for ping in pings] for _ in range(_REPEATS)]
    empty_s, plain_s, loaded_s = (fmean(sorted(row)[: -_REPEATS // 10]) for row in zip(*times, strict=True))
    return max(0.0, plain_s - empty_s), max(0.0, loaded_s - empty_s)


def link_of(pair: tuple[str, str], hop_s: tuple[float, float], feature_width: int, source: str) -> LinkProfile:
    """Return the link of two lanes, from `message_costs`."""
    plain_s, loaded_s = hop_s
    plain_bytes = _ROWS * _CANDIDATES * BYTES_PER_CANDIDATE
    byte_s = max(loaded_s - plain_s, 1e-3 * plain_s, 1e-9) / _features_bytes(feature_width)
    return LinkProfile(
        lanes=pair,
        latency_s=_HOPS * max(0.0, plain_s - plain_bytes * byte_s),
        bytes_per_s=1 / (_HOPS * byte_s),
        source=source,
    )


def _features_bytes(feature_width: int) -> int:
    return 2 * _ROWS * max(feature_width, _LEAST_WIDTH)


def _round_trip_s(lane: Lane, ping: Ping) -> float:
    start_s = time.perf_counter()
    lane.request(ping).result()
    return time.perf_counter() - start_s
