"""Collectives over links that carry nothing else take what theory says; over busy ones they wait."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy import Environment

from costs.collectives import Algorithm, all_gather_s, all_reduce_s
from sim.machine.collective import Collective
from sim.machine.link import Link

TOLERANCE_S = 1e-9
LATENCY_S, BYTES_PER_S = 0.25, 8.0


def group(num_devices: int, algorithm: Algorithm, *, latency_s: float = LATENCY_S, bytes_per_s: float = BYTES_PER_S):
    env = Environment()
    links = [Link(env, latency_s=latency_s, bytes_per_s=bytes_per_s) for _ in range(num_devices)]
    return env, Collective(env, links, algorithm)


@pytest.mark.parametrize("num_devices", [1, 2, 3, 4, 7, 8])
def test_a_ring_reduces_in_twice_n_minus_one_steps_of_an_nth(num_devices: int) -> None:
    env, ring = group(num_devices, "ring")
    env.run(ring.all_reduce(48.0))
    share = (num_devices - 1) / num_devices
    assert env.now == pytest.approx(2 * share * 48 / BYTES_PER_S + 2 * (num_devices - 1) * LATENCY_S, abs=TOLERANCE_S)


@pytest.mark.parametrize("num_devices", [1, 2, 3, 4, 7, 8])
def test_a_tree_reduces_up_and_down_its_levels(num_devices: int) -> None:
    env, tree = group(num_devices, "tree")
    env.run(tree.all_reduce(48.0))
    levels = math.ceil(math.log2(num_devices))
    assert env.now == pytest.approx(2 * levels * (48 / BYTES_PER_S + LATENCY_S), abs=TOLERANCE_S)


@pytest.mark.parametrize("num_devices", [1, 2, 3, 4, 7, 8])
def test_gathering_moves_the_shares_of_the_others(num_devices: int) -> None:
    moved_s = (num_devices - 1) / num_devices * 48 / BYTES_PER_S
    env, ring = group(num_devices, "ring")
    env.run(ring.all_gather(48.0))
    assert env.now == pytest.approx(moved_s + (num_devices - 1) * LATENCY_S, abs=TOLERANCE_S)
    env, tree = group(num_devices, "tree")
    env.run(tree.all_gather(48.0))
    assert env.now == pytest.approx(moved_s + math.ceil(math.log2(num_devices)) * LATENCY_S, abs=TOLERANCE_S)


@given(
    st.integers(1, 12),
    st.sampled_from(["ring", "tree"]),
    st.floats(0, 1e6),
    st.floats(0, 1e-3),
    st.floats(1e3, 1e12),
)
@settings(deadline=None)
def test_closed_forms_hold_on_any_idle_links(
    num_devices: int, algorithm: Algorithm, num_bytes: float, latency_s: float, bytes_per_s: float
) -> None:
    speed = {"latency_s": latency_s, "bytes_per_s": bytes_per_s}
    for name, closed_form in (("all_reduce", all_reduce_s), ("all_gather", all_gather_s)):
        env, found = group(num_devices, algorithm, **speed)
        env.run(getattr(found, name)(num_bytes))
        assert env.now == pytest.approx(
            closed_form(num_bytes, num_devices, algorithm=algorithm, **speed), abs=TOLERANCE_S
        )


def test_a_tree_goes_up_over_its_childrens_links_and_down_over_their_parents() -> None:
    env = Environment()
    links = [Link(env, bytes_per_s=speed) for speed in (1.0, 4.0, 2.0)]
    env.run(Collective(env, links, "tree").all_reduce(8.0))
    # up: the second to the first, the third to the first; down: the first to the third, then to the second
    assert env.now == 8 / 4 + 8 / 2 + 8 / 1 + 8 / 1


def test_a_collective_waits_for_what_its_links_carry_already() -> None:
    env, ring = group(4, "ring")
    ring.links[2].send(80.0)
    env.run(ring.all_reduce(48.0))
    assert env.now == pytest.approx(
        80 / BYTES_PER_S + all_reduce_s(48, 4, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S)
    )


def test_a_ring_is_better_for_many_bytes_and_a_tree_for_few() -> None:
    for num_bytes, better in ((1e6, "ring"), (1.0, "tree")):
        seconds = {
            name: all_reduce_s(num_bytes, 8, latency_s=1e-5, bytes_per_s=1e9, algorithm=name)
            for name in ("ring", "tree")
        }
        assert min(seconds, key=seconds.__getitem__) == better
