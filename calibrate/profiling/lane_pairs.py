"""Measures how much two lanes slow each other down, and the cost of messages to the draft's lane."""

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
"""Roughly how long a draft lane waits for the target between branches."""
_MESSAGE_ROWS: Final = 5
_CANDIDATES: Final = 9
_LEAST_WIDTH: Final = 1024
"""Least elements per row of the timed message: a smaller payload is too cheap to measure the bandwidth."""
_MESSAGE_REPEATS: Final = 40
_HOPS: Final = 2
"""An exit message goes from the target's lane to the driver, and from there to the draft's."""
_VERIFY_RUNS = 2
_STEP_RUNS = 5
_TARGET_ROWS = 4
_DRAFT_ROWS = 8
_PRIOR: Final = Prior(spread=0.04)
"""Prior of slowdowns beyond the anchors': lanes that share no core slow each other little, and comparisons are few."""


def measure_pairs(
    lanes: Mapping[str, Lane], pairs: Sequence[_Pair], anchors: Anchors, *, context: int, max_rows: int
) -> Iterator[Together]:
    """Measure each pair of lanes once: target and draft, each alone and while the other lane works."""
    verify = Measurement(part="verify", rows=min(_TARGET_ROWS, max_rows), context=context, repeats=_VERIFY_RUNS)
    step = Measurement(part="draft_step", rows=_DRAFT_ROWS, context=context, repeats=_STEP_RUNS)
    for pair in pairs:
        target, draft = pair
        yield _compared(anchors, pair, "target", [verify], lanes[draft], step)
        # about every other branch step follows a pause in which the target had the cache for itself
        steps = [step, replace(step, pause_s=PAUSE_S)]
        yield _compared(anchors, pair, "draft", steps, lanes[target], verify)


def contention_of(pair: _Pair, samples: Samples, step_level: Level, source: str) -> Contention:
    """Return the slowdowns of a pair: the anchors' slowdown over the whole calibration, times that of parts beyond it.

    The second factor is common to all pairs, unless a pair clearly differs. The draft's slowdown is divided by
    `step_level`: when the target has evicted the draft's cache, the level already includes that. Slowdowns are at least
    1; lower ones are noise, or in the level. The level's error belongs to the steps' times and is not added here.
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
    """Return the anchors' slowdowns on both lanes, and their relative error (half-width, 90 %)."""
    shared = [one for one in samples.shared_anchors if set(one.lanes) == set(pair)]
    alone_s = {lane: [one.seconds for one in samples.anchors if one.lane == lane] for lane in pair}
    if not shared or not all(alone_s.values()):
        return (1.0, 1.0), 0.0
    taken = {lane: [(one.at_s, one.seconds[one.lanes.index(lane)]) for one in shared] for lane in pair}
    first, second = (fmean(seconds for _, seconds in taken[lane]) / fmean(alone_s[lane]) for lane in pair)
    return (first, second), anchor_errors(taken).common


def _by_pair(samples: Samples, role: str) -> Mapping[_Pair, Sequence[AnchorRatio]]:
    """Return each pair's slowdowns of a role, divided by the slowdown of the anchors taken meanwhile."""
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
    """Time `shared[0]` alone, all of `shared` while the `other` lane runs `load`, and `shared[0]` alone again.

    Anchors are taken on the lane, alone and shared, before and after.
    """
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
    """Return the mean seconds per hop of an exit message beyond an empty message: (without features, with features)."""
    signal = ExitSignal(((0,) * _CANDIDATES,) * _MESSAGE_ROWS, ((0.0,) * _CANDIDATES,) * _MESSAGE_ROWS)
    features = Block(
        "bfloat16", (_MESSAGE_ROWS, max(feature_width, _LEAST_WIDTH)), bytes(_features_bytes(feature_width))
    )
    loads = [(), codec.write(signal).blocks, codec.write(signal._replace(features=features)).blocks]
    times = [[_round_trip_s(lane, tuple(load)) for load in loads] for _ in range(_MESSAGE_REPEATS)]
    empty_s, plain_s, loaded_s = (fmean(sorted(row)[: -_MESSAGE_REPEATS // 10]) for row in zip(*times, strict=True))
    return max(0.0, plain_s - empty_s), max(0.0, loaded_s - empty_s)


def link_of(pair: _Pair, hop_s: tuple[float, float], feature_width: int, source: str) -> LinkProfile:
    """Return the link of two lanes; `hop_s` is the result of `message_costs`."""
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
