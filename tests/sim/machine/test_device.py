from math import inf

import pytest
from simpy import Environment

from sim.machine.device import Device
from sim.machine.shared_memory import Run, SharedMemory


def new_memory() -> SharedMemory:
    return SharedMemory(Environment(), lambda _one, _other: (2.0, 2.0))


def test_operations_follow_each_other_first_in_first_out_half_a_dispatch_after_they_were_sent():
    memory = new_memory()
    device, starts = Device(memory, half_s=0.5), []

    def operation(seconds):
        starts.append(memory.env.now)
        yield Run(seconds)

    for seconds, after_s in ((2.0, 3.0), (1.0, 4.0), (1.0, 9.0)):
        device.submit(operation(seconds), after_s=after_s)
    memory.env.run()
    assert starts == [3.5, 5.5, 9.5]
    assert memory.env.now == 10.5


def test_an_operation_may_wait_until_it_is_resumed():
    memory = new_memory()
    device, env = Device(memory), memory.env
    messages = []
    ends = []

    def operation():
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
def test_a_run_of_equal_steps_is_cut_at_the_next_boundary(cut_at_s, steps, end_s):
    memory = new_memory()
    run, env = Run(4 * 2.0), memory.env
    ends = []

    def operation():
        yield run
        ends.append(env.now)

    def cut():
        yield env.timeout(cut_at_s)
        assert memory.cut(run, 2.0) == steps

    Device(memory).submit(operation())
    env.process(cut())
    env.run()
    assert ends == [end_s]


@pytest.mark.parametrize(("halves_s", "expected"), [((1.0,), 2), ((1.0, 1.0), 3), ((1.0, 1.5), 5)])
def test_devices_that_begin_at_the_same_time_take_one_event_to_do_so(halves_s, expected):
    """Each begins and ends; the end that was foreseen before another one began comes too, and is ignored."""
    memory = new_memory()
    for half_s in halves_s:
        Device(memory, half_s=half_s).submit(iter([Run(1.0)]))
    count = 0
    while memory.env.peek() < inf:
        memory.env.step()
        count += 1
    assert count == expected
