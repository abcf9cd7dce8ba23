"""What any cost model says, written down as tables, is what it says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from costs.cost_model import MeasuredCost, Own, Part, PartFacts, Shared, traffic
from costs.tabulated import tabulated
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.profile import Profile

LANE = LaneProfile(name="x", device="made up", dispatch_s=0.0)
PROFILE = Profile(host={}, target="t", drafter="d", dtype="bf16", num_layers=2, lanes=(LANE,))


class Kinked:
    """A staircase in rows, and a line with a kink in contexts: what compiled graphs and padded caches come to.

    Kernels are started meanwhile.
    """

    def __init__(self, width: int, step: int, slope: float, most_rows: int, start_s: float = 0.0) -> None:
        self._width, self._step, self._slope, self._most_rows = width, step, slope, most_rows
        self._start_s = start_s

    def seconds(self, part, rows, contexts):
        return self.shared(part, rows).with_one(self.own(part, rows, contexts))

    def missing(self, part, rows, contexts):
        return None if part.kind != "draft_streams" and rows <= self._most_rows else "too many"

    def shared(self, part, rows):
        stairs = -(-rows // self._width)
        return Shared(7.0 * stairs, 1e-3 * stairs, 1e-3 * stairs + 1e-4 * (rows > 5), self._start_s)

    def own(self, part, rows, contexts):
        padded = np.ceil(contexts / self._step) * self._step
        return Own(3.0 * padded, self._slope * padded, 2e-5 * (rows + contexts))

    def facts(self, part):
        return PartFacts(0.1, "made up", 600)


def assert_alike(written, told):
    """As `pytest.approx`, which compares arrays number by number: most of the time went there."""
    np.testing.assert_allclose(written, told, rtol=1e-9, atol=1e-12, equal_nan=False)


@given(
    cost=st.builds(
        Kinked,
        width=st.integers(1, 9),
        step=st.integers(1, 64),
        slope=st.floats(0, 1e-4),
        most_rows=st.integers(1, 40),
        start_s=st.floats(1e-3, 1e-1),
    ),
    first=st.integers(1, 500),
    count=st.integers(2, 90),
)
def test_tables_say_what_the_cost_model_says(cost, first, count):
    contexts = range(first, first + count)
    found = tabulated(PROFILE, {"x": cost}, contexts=contexts, most_rows=20, prompt_rows=[first], exits=(1,))
    tables, at = MeasuredCost(found.lane("x")), np.array(contexts, dtype=np.float64)
    for part in (Part("layer"), Part("draft_step"), Part("exit", 1)):
        for rows in range(1, 22):
            if cost.missing(part, rows, at) is None and rows <= 20:
                assert_alike(tables.seconds(part, rows, at), cost.seconds(part, rows, at))
                assert_alike(traffic(tables, part, rows, at), traffic(cost, part, rows, at))
                assert_alike(tables.shared(part, rows), cost.shared(part, rows))
                assert_alike(tables.own(part, rows, at), cost.own(part, rows, at))
            else:
                assert tables.missing(part, rows, at)
    assert found.lane("x").draft_streams is None
    assert tables.facts(Part("layer")) == cost.facts(Part("layer"))


def test_straight_lines_are_kept_by_their_ends():
    line = Kinked(width=100, step=1, slope=1e-4, most_rows=64)
    layer = tabulated(PROFILE, {"x": line}, contexts=range(100, 900), most_rows=64, prompt_rows=[99]).lane("x").layer
    assert layer.rows == (1, 5, 6, 64)
    assert layer.contexts == (100, 899)


def test_lanes_without_a_cost_stay_as_they_are():
    assert tabulated(PROFILE, {}, contexts=range(1, 3), most_rows=2, prompt_rows=[1]) == PROFILE
