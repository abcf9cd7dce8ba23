from __future__ import annotations

from math import inf

import pytest
from simpy import Environment

from sim.machine.device import Device
from sim.machine.memory_pool import MemoryPool, Run, Runs


def test_operations_follow_each_other_first_in_first_out() -> None:
    env = Environment()
    device = Device(MemoryPool(env))
    ends: list[tuple[str, float]] = []
    for name, seconds in (("long", 3.0), ("short", 1.0), ("last", 2.0)):
        device.execute(seconds).callbacks.append(lambda _, name=name: ends.append((name, env.now)))
    env.run()
    assert ends == [("long", 3.0), ("short", 4.0), ("last", 6.0)]


def test_half_a_dispatch_before_an_operation_and_half_after_it() -> None:
    """n operations that wait for each other's replies take n * (dispatch + seconds), queued ones a dispatch in all."""
    env = Environment()
    device = Device(MemoryPool(env), dispatch_s=0.5)

    def in_turn():
        for _ in range(4):
            yield device.execute(1.0)

    env.run(env.process(in_turn()))
    assert env.now == 4 * (0.5 + 1.0)
    env.run(env.all_of([device.execute(1.0) for _ in range(4)]))
    assert env.now == 6.0 + 0.5 + 4 * 1.0


def test_what_is_sent_later_arrives_later() -> None:
    env = Environment()
    device = Device(MemoryPool(env), dispatch_s=1.0)
    starts: list[float] = []

    def operation() -> Runs:
        starts.append(env.now)
        yield Run(2.0)

    device.submit(operation(), after_s=3.0)
    device.submit(operation(), after_s=4.0)
    env.run()
    assert starts == [3.5, 5.5]
    assert env.now == 7.5


def test_an_operation_may_wait_until_it_is_resumed() -> None:
    env = Environment()
    device = Device(MemoryPool(env))
    messages: list[str] = []
    ends: list[float] = []

    def operation() -> Runs:
        while not messages:
            yield None
        yield Run(2.0)
        ends.append(env.now)

    def tell():
        yield env.timeout(5.0)
        messages.append("go")
        device.resume()
        device.resume()

    device.submit(operation())
    env.process(tell())
    env.run()
    assert ends == [7.0]


@pytest.mark.parametrize(("cut_at_s", "steps", "end_s"), [(0.0, 0, 0.0), (0.5, 1, 2.0), (2.0, 1, 2.0), (5.0, 3, 6.0)])
def test_a_run_of_equal_steps_is_cut_at_the_next_boundary(cut_at_s: float, steps: int, end_s: float) -> None:
    env = Environment()
    device = Device(MemoryPool(env))
    run = Run(4 * 2.0)
    ends: list[float] = []

    def operation() -> Runs:
        yield run
        ends.append(env.now)

    def cut():
        yield env.timeout(cut_at_s)
        assert device.cut(run, 2.0) == steps

    device.submit(operation())
    env.process(cut())
    env.run()
    assert ends == [end_s]


def test_a_device_is_as_slow_as_the_slower_of_computing_and_reading() -> None:
    env = Environment()
    device = Device(MemoryPool(env), most_bytes_per_s=2.0)
    env.run(device.execute(3.0, num_bytes=4.0))
    assert env.now == 3.0
    env.run(device.execute(3.0, num_bytes=20.0))
    assert env.now == 13.0


def test_what_arrives_at_the_same_time_begins_at_once_whoever_was_asked_in_between() -> None:
    """Four devices read 4 bytes each of a memory of 4 bytes/s, three from second 1 on and one from second 2 on."""
    env = Environment()
    pool = MemoryPool(env, 4.0)
    ends_s = {}

    def read(dispatch_s: float, place: int):
        yield Device(pool, dispatch_s=dispatch_s, most_bytes_per_s=4.0).execute(0.0, num_bytes=4.0)
        ends_s[place] = env.now - dispatch_s / 2

    for place, dispatch_s in enumerate((2.0, 2.0, 4.0, 2.0)):
        env.process(read(dispatch_s, place))
    env.run()
    # a third each for a second, then a quarter until the three have the rest of theirs, then all of it for the last
    assert ends_s == pytest.approx({0: 14 / 3, 1: 14 / 3, 3: 14 / 3, 2: 5.0}, abs=1e-9)


def test_devices_that_begin_at_the_same_time_take_one_event_to_do_so() -> None:
    def events(*dispatches_s: float) -> int:
        env = Environment()
        pool = MemoryPool(env, 4.0)
        for dispatch_s in dispatches_s:
            Device(pool, dispatch_s=dispatch_s).submit(iter([Run(1.0)]))
        count = 0
        while env.peek() < inf:
            env.step()
            count += 1
        return count

    assert events(2.0) == 2  # it begins, and it ends
    assert events(2.0, 2.0) == 3
    assert events(2.0, 3.0) == 5  # the end that was foreseen before the other one began is ignored
