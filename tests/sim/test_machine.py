"""Devices take one operation at a time and slow each other on one memory; links pass messages one after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy import Environment

from costs.lane_messages import Hop
from sim.machine import Job, Jobs, Link, SharedMemory, SimulatedDevice, send_along


def new_memory() -> SharedMemory:
    return SharedMemory(Environment(), lambda _one, _other: (2.0, 2.0))


def test_operations_follow_each_other_first_in_first_out_half_a_dispatch_after_they_were_sent():
    memory = new_memory()
    device, starts = SimulatedDevice(memory, half_s=0.5), []

    def operation(seconds):
        starts.append(memory.env.now)
        yield Job(seconds)

    for seconds, after_s in ((2.0, 3.0), (1.0, 4.0), (1.0, 9.0)):
        device.submit(operation(seconds), after_s=after_s)
    memory.env.run()
    assert starts == [3.5, 5.5, 9.5]
    assert memory.env.now == 10.5


def test_an_operation_may_wait_until_it_is_resumed():
    memory = new_memory()
    device, env = SimulatedDevice(memory), memory.env
    messages = []
    ends = []

    def operation():
        while not messages:
            yield None
        yield Job(2.0)
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
def test_a_run_of_equal_steps_is_cut_at_the_next_boundary(cut_at_s, steps, end_s):
    memory = new_memory()
    job, env = Job(4 * 2.0), memory.env
    ends = []

    def operation():
        yield job
        ends.append(env.now)

    def cut():
        yield env.timeout(cut_at_s)
        assert memory.cut(job, 2.0) == steps

    SimulatedDevice(memory).submit(operation())
    env.process(cut())
    env.run()
    assert ends == [end_s]


SECONDS = st.floats(0.1, 50)


def ends_s(slowdowns: tuple[float, float], works_s: tuple[float, float], second_starts_s: float = 0.0) -> list[float]:
    """When the works of both devices end, of which the second is sent later."""
    env = Environment()
    memory = SharedMemory(env, lambda _one, _other: slowdowns)
    ends = [0.0, 0.0]

    def operation(place: int) -> Jobs:
        yield Job(works_s[place])
        ends[place] = env.now

    for place, after_s in enumerate((0.0, second_starts_s)):
        SimulatedDevice(memory).submit(operation(place), after_s=after_s)
    env.run()
    return ends


@given(st.tuples(st.floats(1, 5), st.floats(1, 5)), st.tuples(SECONDS, SECONDS), st.floats(0, 20))
def test_ends_are_those_of_two_lines(slowdowns, works_s, second_starts_s):
    alone_s = min(works_s[0], second_starts_s)
    first_left_s = works_s[0] - alone_s
    both_s = min(first_left_s * slowdowns[0], works_s[1] * slowdowns[1]) if first_left_s else 0.0
    first_s = second_starts_s + both_s + first_left_s - both_s / slowdowns[0] if first_left_s else works_s[0]
    second_s = second_starts_s + both_s + works_s[1] - both_s / slowdowns[1]
    assert ends_s(slowdowns, works_s, second_starts_s) == pytest.approx([first_s, second_s], abs=1e-9)


def test_pieces_of_a_slowed_run_end_when_they_are_done():
    """Four seconds of work, from 1 on at half of its pace: the halves end at 3 and 7."""
    env = Environment()
    memory = SharedMemory(env, lambda _one, _other: (2.0, 1.0), has_marks=True)
    job = Job(4.0)
    ends = []

    def operation():
        yield job
        ends.append(job.end_times_s([2.0, 2.0]))

    SimulatedDevice(memory).submit(operation())
    SimulatedDevice(memory).submit(iter([Job(6.0)]), after_s=1.0)
    env.run()
    assert ends == [pytest.approx([0.0, 3.0, 7.0])]


TOLERANCE_S = 1e-9


def link(latency_s: float = 0.0, bytes_per_s: float = 1.0) -> Link:
    return Link(Hop("there", latency_s, bytes_per_s))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9), st.floats(0, 5), st.floats(0.5, 50))
def test_a_saturated_link_moves_all_bytes_at_its_bandwidth_and_latency_is_paid_once_each(sizes, latency_s, bytes_per_s):
    subject = link(latency_s, bytes_per_s)
    arrivals = [subject.send(size, 0.0) for size in sizes]
    expected = [sum(sizes[: place + 1]) / bytes_per_s + latency_s for place in range(len(sizes))]
    assert arrivals == pytest.approx(expected, abs=TOLERANCE_S)


def test_a_path_passes_messages_on_whole_and_they_queue_where_paths_meet():
    """Two first hops of 3 s and 1 s into one link of 4 s and a second of latency."""
    shared = link(1.0, 1.0)
    assert send_along((link(0.5, 4.0), shared), 4.0, 10.0) == 10 + (1 + 0.5) + (4 + 1)
    assert send_along((link(0.0, 4.0), shared), 4.0, 10.0) == 15.5 + 4 + 1
    assert send_along((), 16.0, 10.0) == 10
