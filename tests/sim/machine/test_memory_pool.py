"""Devices on one memory: fair shares, caps, and what has been done when a share changes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy import Environment

from costs.fair_shares import fair_shares, stretches
from sim.machine.device import Device
from sim.machine.memory_pool import MemoryPool, Run, Runs

TOLERANCE_S = 1e-9


class Reading(NamedTuple):
    """Bytes that a device reads from some time on, at its cap if nobody else reads."""

    start_s: float
    num_bytes: float
    cap: float


def ends_s(pool_bytes_per_s: float, *readings: Reading) -> list[float]:
    """When each of some devices has read, all of one pool."""
    env = Environment()
    pool = MemoryPool(env, pool_bytes_per_s)
    times = [0.0] * len(readings)

    def read(place: int, reading: Reading):
        device = Device(pool, most_bytes_per_s=reading.cap)
        yield env.timeout(reading.start_s)
        yield device.execute(0.0, num_bytes=reading.num_bytes)
        times[place] = env.now

    for place, reading in enumerate(readings):
        env.process(read(place, reading))
    env.run()
    return times


READINGS = st.builds(
    Reading, st.floats(0, 5).map(lambda value: round(value, 3)), st.floats(0.1, 100), st.floats(0.5, 50)
)


@pytest.mark.parametrize(
    ("wanted", "total", "expected"),
    [
        ([1, 2, 3], 10, [1, 2, 3]),
        ([8, 8, 8, 8], 10, [2.5, 2.5, 2.5, 2.5]),
        ([2, 2.6, 4, 5], 10, [2, 2.6, 2.7, 2.7]),  # the textbook's example
        ([5, 1], 4, [3, 1]),
        ([0, 7], 4, [0, 4]),
        ([3], float("inf"), [3]),
    ],
)
def test_fair_shares(wanted: list[float], total: float, expected: list[float]) -> None:
    found = fair_shares([np.array([wants], dtype=float) for wants in wanted], total)
    assert [share[0] for share in found] == pytest.approx(expected)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8), st.floats(0.1, 200))
def test_shares_use_up_the_bandwidth_or_grant_all(wanted: list[float], total: float) -> None:
    found = [float(share[0]) for share in fair_shares([np.array([wants]) for wants in wanted], total)]
    assert sum(found) == pytest.approx(min(total, sum(wanted)))
    least = min((share for share, wants in zip(found, wanted, strict=True) if share < wants - 1e-9), default=None)
    if least is not None:  # nobody has more than somebody who would like more
        assert max(found) <= least * (1 + 1e-9) or max(found) == pytest.approx(least)


def test_nothing_is_stretched_that_gets_all_it_wants() -> None:
    assert [one.tolist() for one in stretches([np.array([0.0, 2.0]), np.array([5.0, 2.0])], 3.0)] == [
        [1.0, 2.0 / 1.5],
        [5 / 3, 2.0 / 1.5],
    ]


def test_one_device_reads_at_its_cap_or_at_that_of_the_pool() -> None:
    assert ends_s(10.0, Reading(0, 20, 4)) == pytest.approx([5], abs=TOLERANCE_S)
    assert ends_s(10.0, Reading(0, 20, 40)) == pytest.approx([2], abs=TOLERANCE_S)


def test_two_devices_share_fairly_until_one_is_done() -> None:
    """6 of 10 each wanted: 5 each; the first is done after 20/5 s, then the other goes at its cap."""
    found = ends_s(10.0, Reading(0, 20, 6), Reading(0, 50, 6))
    assert found == pytest.approx([4, 4 + 30 / 6], abs=TOLERANCE_S)


def test_who_wants_little_is_not_slowed() -> None:
    found = ends_s(10.0, Reading(0, 8, 2), Reading(0, 80, 20))
    assert found == pytest.approx([4, 4 + (80 - 4 * 8) / 10], abs=TOLERANCE_S)


def test_a_device_that_comes_later_re_times_the_others() -> None:
    found = ends_s(10.0, Reading(0, 60, 10), Reading(2, 20, 10), Reading(2, 20, 10))
    assert found == pytest.approx([8 + 20 / 10, 8, 8], abs=TOLERANCE_S)


@given(st.lists(READINGS, min_size=1, max_size=5), st.floats(1, 60))
@settings(deadline=None)
def test_a_saturated_pool_moves_all_bytes_at_its_bandwidth(readings: list[Reading], pool: float) -> None:
    """Everybody wants all of it from the start: the last one ends when all bytes have been read."""
    greedy = [reading._replace(start_s=0.0, cap=pool) for reading in readings]
    assert max(ends_s(pool, *greedy)) == pytest.approx(sum(one.num_bytes for one in readings) / pool, rel=1e-9)


@given(st.lists(READINGS, min_size=1, max_size=5), st.floats(1, 60), st.floats(1, 4))
@settings(deadline=None)
def test_more_bandwidth_never_ends_anything_later(readings: list[Reading], pool: float, factor: float) -> None:
    for wide, narrow in zip(ends_s(pool * factor, *readings), ends_s(pool, *readings), strict=True):
        assert wide <= narrow + TOLERANCE_S


@given(st.lists(READINGS, min_size=1, max_size=5), st.floats(1, 60), st.floats(1, 4))
@settings(deadline=None)
def test_a_bigger_cap_never_ends_its_devices_work_later(readings: list[Reading], pool: float, factor: float) -> None:
    bigger = [readings[0]._replace(cap=readings[0].cap * factor), *readings[1:]]
    assert ends_s(pool, *bigger)[0] <= ends_s(pool, *readings)[0] + TOLERANCE_S


@given(st.lists(READINGS, min_size=2, max_size=5), st.floats(1, 60))
@settings(deadline=None)
def test_nobody_reads_faster_next_to_others(readings: list[Reading], pool: float) -> None:
    for reading, found in zip(readings, ends_s(pool, *readings), strict=True):
        assert found >= ends_s(pool, reading)[0] - TOLERANCE_S


def test_pieces_of_a_slowed_run_end_when_they_are_done() -> None:
    """Eight bytes at two a second, from 1 on at one a second: the halves end at 3 and 7."""
    env = Environment()
    pool = MemoryPool(env, 2.0, has_marks=True)
    first, second = Device(pool), Device(pool)
    run = Run(4.0, bytes_per_s=2.0)
    ends: list[list[float]] = []

    def operation() -> Runs:
        yield run
        ends.append(run.times_s([2.0, 2.0]))

    def come_later():
        yield env.timeout(1.0)
        yield second.execute(3.0, num_bytes=6.0)

    first.submit(operation())
    env.process(come_later())
    env.run()
    assert ends == [pytest.approx([0.0, 3.0, 7.0])]
