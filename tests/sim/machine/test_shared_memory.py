"""Two devices on one memory: what has been done when the other one starts or stops, and when pieces of it ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy import Environment

from sim.machine.device import Device
from sim.machine.shared_memory import Run, Runs, SharedMemory

SECONDS = st.floats(0.1, 50)


def ends_s(slowdowns: tuple[float, float], works_s: tuple[float, float], second_starts_s: float = 0.0) -> list[float]:
    """When the works of both devices end, of which the second is sent later."""
    env = Environment()
    memory = SharedMemory(env, lambda _one, _other: slowdowns)
    ends = [0.0, 0.0]

    def operation(place: int) -> Runs:
        yield Run(works_s[place])
        ends[place] = env.now

    for place, after_s in enumerate((0.0, second_starts_s)):
        Device(memory).submit(operation(place), after_s=after_s)
    env.run()
    return ends


def test_both_go_on_at_their_own_pace_until_one_is_done():
    """From 1 to 7 the first does 3 of its 10 seconds and the second all of its 2; then the first is alone again."""
    assert ends_s((2.0, 3.0), (10.0, 2.0), 1.0) == pytest.approx([13.0, 7.0], abs=1e-9)


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
    run = Run(4.0)
    ends = []

    def operation():
        yield run
        ends.append(run.times_s([2.0, 2.0]))

    Device(memory).submit(operation())
    Device(memory).submit(iter([Run(6.0)]), after_s=1.0)
    env.run()
    assert ends == [pytest.approx([0.0, 3.0, 7.0])]
