import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costs.contention import PairContention
from tests.sim.worlds.machines import machine

POSITIVE = st.floats(0.01, 100)


def slowdown(pair: PairContention, target_bytes_per_s: float, draft_bytes_per_s: float) -> tuple[float, float]:
    found = pair.slowdown(np.array([target_bytes_per_s]), np.array([draft_bytes_per_s]))
    return float(found.target[0]), float(found.draft[0])


def test_lanes_that_nothing_is_known_of_are_free():
    assert PairContention.of(machine(), "target", "draft") == (1, 1, float("inf"))
    assert PairContention.of(machine(memory_pool_bytes_per_s=1e9), "target", "draft") == (1, 1, 1e9)


@given(st.tuples(st.just(0.0) | POSITIVE, st.just(0.0) | POSITIVE), st.floats(0.1, 200))
def test_shares_use_up_the_bandwidth_or_grant_all_and_nobody_has_more_than_who_would_like_more(wanted, total):
    slower = slowdown(PairContention(1.0, 1.0, total), *wanted)
    assert slower == PairContention(1.0, 1.0, total).slowdown_of_two(*wanted)
    shares = [wants / stretch for wants, stretch in zip(wanted, slower, strict=True)]
    assert sum(shares) == pytest.approx(min(total, sum(wanted)))
    least = min((share for share, stretch in zip(shares, slower, strict=True) if stretch > 1 + 1e-9), default=None)
    assert least is None or max(shares) <= least * (1 + 1e-9)


@pytest.mark.parametrize(
    ("demands", "slowdowns"),
    [
        ((40, 60), (1, 1)),
        ((80, 80), (1.6, 1.6)),
        # who wants less than half gets it all
        ((20, 160), (1, 2)),
        ((160, 20), (2, 1)),
        ((0, 200), (1, 2)),
    ],
)
def test_a_pool_is_shared_max_min_fairly(demands, slowdowns):
    assert slowdown(PairContention(1.0, 1.0, 100.0), *demands) == slowdowns


def test_a_pool_binds_what_is_left_after_the_measured_slowdown():
    # at half speed the target wants 80 and gets 50
    assert slowdown(PairContention(2.0, 1.0, 100.0), 160, 60) == (2 * 1.6, 1.2)
