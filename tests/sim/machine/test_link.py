from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy import Environment

from sim.machine.host_cpu import Host
from sim.machine.link import Link, Path

TOLERANCE_S = 1e-9


def test_a_message_takes_its_bytes_over_the_bandwidth_and_the_latency() -> None:
    env = Environment()
    link = Link(env, latency_s=0.25, bytes_per_s=8.0)
    assert env.run(link.send(4.0, "hello")) == "hello"
    assert env.now == 0.5 + 0.25


def test_two_senders_saturate_a_link_in_turn_and_latency_is_paid_once_each() -> None:
    """The n-th of messages that are sent at once arrives n * bytes / bandwidth + latency later."""
    env = Environment()
    link = Link(env, latency_s=2.0, bytes_per_s=8.0)
    arrivals: list[tuple[str, float]] = []

    def sender(name: str):
        for _ in range(2):
            yield link.send(4.0)
            arrivals.append((name, env.now))

    env.process(sender("a"))
    env.process(sender("b"))
    env.run()
    assert arrivals == [("a", 2.5), ("b", 3.0), ("a", 5.0), ("b", 5.5)]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9), st.floats(0, 5), st.floats(0.5, 50))
def test_a_saturated_link_moves_all_bytes_at_its_bandwidth(
    sizes: list[float], latency_s: float, bytes_per_s: float
) -> None:
    env = Environment()
    link = Link(env, latency_s=latency_s, bytes_per_s=bytes_per_s)
    env.run(env.all_of([link.send(size) for size in sizes]))
    assert env.now == pytest.approx(sum(sizes) / bytes_per_s + latency_s, abs=TOLERANCE_S)


def test_directions_do_not_hinder_each_other() -> None:
    env = Environment()
    forth, back = (Link(env, bytes_per_s=1.0) for _ in range(2))
    env.run(env.all_of([forth.send(5.0), back.send(5.0)]))
    assert env.now == 5.0


def test_a_path_passes_messages_on_whole() -> None:
    env = Environment()
    links = [Link(env, latency_s=1.0, bytes_per_s=4.0), Link(env, latency_s=2.0, bytes_per_s=8.0)]
    assert env.run(Path(links).send(env, 16.0, "there")) == "there"
    assert env.now == (16 / 4 + 1) + (16 / 8 + 2)
    assert Path(links).arrival_s(16.0, 10.0) == 10 + (16 / 4 + 1) + (16 / 8 + 2)
    assert Path(()).arrival_s(16.0, 10.0) == 10


def test_messages_of_several_paths_queue_where_they_meet() -> None:
    """Two first hops of 1 s and 3 s into one link of 4 s: the second waits from 4 to 5."""
    env = Environment()
    shared = Link(env, bytes_per_s=1.0)
    near, far = Link(env, bytes_per_s=4.0), Link(env, bytes_per_s=4 / 3)
    arrivals = [Path((first, shared)).send(env, 4.0) for first in (far, near)]
    env.run(arrivals[1])
    assert env.now == 1 + 4
    env.run(arrivals[0])
    assert env.now == 5 + 4


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 50)), min_size=1, max_size=6), st.floats(1, 4), st.floats(0, 3))
def test_a_wider_or_nearer_link_never_delivers_anything_later(
    sent: list[tuple[float, float]], factor: float, latency_s: float
) -> None:
    def arrivals(link: Link) -> list[float]:
        return [link.arrival_s(num_bytes, at_s) for at_s, num_bytes in sorted(sent)]

    def link(latency_s: float, bytes_per_s: float) -> Link:
        return Link(Environment(), latency_s=latency_s, bytes_per_s=bytes_per_s)

    known = arrivals(link(latency_s, 10.0))
    for better in (link(latency_s, 10.0 * factor), link(latency_s / factor, 10.0)):
        assert all(new <= old + TOLERANCE_S for new, old in zip(arrivals(better), known, strict=True))


def test_a_host_handles_one_message_after_the_other() -> None:
    env = Environment()
    host = Host(env, handling_s=0.5)
    ends: list[float] = []

    def messages():
        handled = [host.handle(), host.handle()]
        yield handled[0]
        ends.append(env.now)
        yield handled[1]
        ends.append(env.now)
        yield env.timeout(2.0)
        yield host.handle()
        ends.append(env.now)

    env.run(env.process(messages()))
    assert ends == [0.5, 1.0, 3.5]
