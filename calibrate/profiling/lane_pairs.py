"""Measures how much two lanes slow each other, and what messages to the draft's lane cost."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import hypot
from statistics import fmean
from typing import Final, Literal

from calibrate.fitting.levels import Level, Prior, shared_levels
from calibrate.fitting.ratios import AnchorRatio, anchor_errors
from calibrate.profiling.anchors import Anchors
from calibrate.profiling.samples import Samples, Together
from decoding.messages import ExitSignal
from hwprofiles.bounds import MOST_RELATIVE_ERROR
from hwprofiles.profile import BYTES_PER_CANDIDATE, Contention, LinkProfile
from runtime.lanes.lane import Lane
from runtime.wire import codec
from runtime.wire.channel import Block
from runtime.wire.measurement import Measurement
from runtime.worker.server import LaneServer

_Pair = tuple[str, str]
"""(target's lane, draft's lane)."""

PAUSE_S: Final = 0.015
"""How long lanes of a schedule wait for each other, roughly."""
_MESSAGE_ROWS: Final = 5
_CANDIDATES: Final = 9
_LEAST_WIDTH: Final = 1024
"""Numbers per row: a smaller payload would cost too little to measure the bandwidth."""
_MESSAGE_REPEATS: Final = 40
_HOPS: Final = 2
"""An exit message goes from the target's lane to the driver, and from there to the draft's."""
_VERIFY_RUNS = 2
_STEP_RUNS = 5
_TARGET_ROWS = 4
_DRAFT_ROWS = 8
_PRIOR: Final = Prior(spread=0.04)
"""Lanes that share no core slow each other a little, if at all; few comparisons hardly show how much."""


def measure_pairs(
    lanes: Mapping[str, Lane], pairs: Sequence[_Pair], anchors: Anchors, *, context: int, max_rows: int
) -> Iterator[Together]:
    """Measure every pair of lanes once, either lane alone and while the other works."""
    verify = Measurement(part="verify", rows=min(_TARGET_ROWS, max_rows), context=context, repeats=_VERIFY_RUNS)
    step = Measurement(part="draft_step", rows=_DRAFT_ROWS, context=context, repeats=_STEP_RUNS)
    for pair in pairs:
        target, draft = pair
        yield _compared(anchors, pair, "target", [verify], lanes[draft], step)
        # about every other step of branches is the first one after the target had the cache for itself
        steps = [step, replace(step, pause_s=PAUSE_S)]
        yield _compared(anchors, pair, "draft", steps, lanes[target], verify)


def contention_of(pair: _Pair, samples: Samples, step_level: Level, source: str) -> Contention:
    """Return the slowdowns of a pair: that of anchors over the whole calibration, times how much more other work slows.

    The draft's is relative to what its steps take in real runs (`step_level`). The second factor is shared by all
    pairs, unless that of one differs. A draft that finds its cache used by the target is slowed once, whether at the
    same time or after it. No lane is faster while the other works: what looks like it is noise, or in the level. The
    error of a level belongs to its steps, and not to how much slower they are.
    """
    target, draft = (shared_levels(_by_pair(samples, role), _PRIOR)[pair] for role in ("target", "draft"))
    anchors, unrest = _anchor_slowdown(pair, samples)
    slowdown = (max(1.0, target.factor * anchors[0]), max(1.0, draft.factor * anchors[1] / step_level.factor))
    return Contention(
        lanes=pair,
        slowdown=slowdown,
        anchor_slowdown=anchors,
        relative_error=min(MOST_RELATIVE_ERROR, hypot(max(target.half_width, draft.half_width), unrest)),
        source=source,
    )


def _anchor_slowdown(pair: _Pair, samples: Samples) -> tuple[tuple[float, float], float]:
    """Return the mean time of anchors on both lanes at once over those alone, and the half-width of its error."""
    shared = [one for one in samples.shared_anchors if set(one.lanes) == set(pair)]
    alone_s = {lane: [one.seconds for one in samples.anchors if one.lane == lane] for lane in pair}
    if not shared or not all(alone_s.values()):
        return (1.0, 1.0), 0.0
    taken = {lane: [(one.at_s, one.seconds[one.lanes.index(lane)]) for one in shared] for lane in pair}
    first, second = (fmean(seconds for _, seconds in taken[lane]) / fmean(alone_s[lane]) for lane in pair)
    return (first, second), anchor_errors(taken).common


def _by_pair(samples: Samples, role: str) -> Mapping[_Pair, Sequence[AnchorRatio]]:
    """Return slowdowns relative to those of the anchors taken meanwhile, by pair."""
    found = defaultdict[_Pair, list[AnchorRatio]](list)
    for one in samples.together:
        if one.role == role:
            found[one.pair].append(one.slowdown.over(one.anchor_slowdown))
    return found


def _compared(
    anchors: Anchors,
    pair: _Pair,
    role: Literal["target", "draft"],
    shared: Sequence[Measurement],
    other: Lane,
    load: Measurement,
) -> Together:
    """Time the first of `shared` alone, all of them while the other lane is busy, and the first again; anchors too."""
    place = 0 if role == "target" else 1
    lane = pair[place]
    alone_s = [fmean(anchors.visit(lane, shared[0]))]
    anchor_s, anchor_shared_s = [anchors.take(lane)], [anchors.take_shared(pair)[place]]
    with other.busy(replace(load, repeats=1)):
        shared_s = fmean(seconds for one in shared for seconds in anchors.visit(lane, one))
    anchor_shared_s.append(anchors.take_shared(pair)[place])
    anchor_s.append(anchors.take(lane))
    alone_s.append(fmean(anchors.visit(lane, shared[0])))
    return Together(pair, role, alone_s[0], shared_s, alone_s[1], fmean(anchor_shared_s) / fmean(anchor_s))


def message_costs(lane: Lane, feature_width: int) -> tuple[float, float]:
    """Return the mean seconds that an exit message costs per hop beyond an empty one: without features and with."""
    signal = ExitSignal(((0,) * _CANDIDATES,) * _MESSAGE_ROWS, ((0.0,) * _CANDIDATES,) * _MESSAGE_ROWS)
    features = Block(
        "bfloat16", (_MESSAGE_ROWS, max(feature_width, _LEAST_WIDTH)), bytes(_features_bytes(feature_width))
    )
    loads = [(), codec.write(signal).blocks, codec.write(signal._replace(features=features)).blocks]
    times = [[_round_trip_s(lane, tuple(load)) for load in loads] for _ in range(_MESSAGE_REPEATS)]
    empty_s, plain_s, loaded_s = (fmean(sorted(row)[: -_MESSAGE_REPEATS // 10]) for row in zip(*times, strict=True))
    return max(0.0, plain_s - empty_s), max(0.0, loaded_s - empty_s)


def link_of(pair: _Pair, hop_s: tuple[float, float], feature_width: int, source: str) -> LinkProfile:
    """Return the link of two lanes, from `message_costs`."""
    plain_s, loaded_s = hop_s
    plain_bytes = _MESSAGE_ROWS * _CANDIDATES * BYTES_PER_CANDIDATE
    byte_s = max(loaded_s - plain_s, 1e-3 * plain_s, 1e-9) / _features_bytes(feature_width)
    return LinkProfile(
        lanes=pair,
        latency_s=_HOPS * max(0.0, plain_s - plain_bytes * byte_s),
        bytes_per_s=1 / (_HOPS * byte_s),
        source=source,
    )


def _features_bytes(feature_width: int) -> int:
    return 2 * _MESSAGE_ROWS * max(feature_width, _LEAST_WIDTH)


def _round_trip_s(lane: Lane, load: tuple[Block, ...]) -> float:
    start_s = time.perf_counter()
    lane.request(LaneServer.ping, load).result()
    return time.perf_counter() - start_s
