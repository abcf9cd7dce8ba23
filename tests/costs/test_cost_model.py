import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costs.cost_model import MeasuredCost, Part
from decoding.errors import OutOfRangeError, ProfileError
from hwprofiles.profile import LaneProfile, LatencyTable

TABLE = LatencyTable(
    rows=(1, 4, 8),
    contexts=(32, 256),
    seconds=((1, 3), (4, 6), (5, 9)),
    relative_error=0.1,
    bytes_per_call=7,
    source="test",
)
LANE = LaneProfile(
    name="cpu",
    device="cpu",
    dispatch_s=0,
    layer=TABLE,
    exit={3: TABLE.model_copy(update={"contexts": (0,), "seconds": ((1,), (2,), (4,))})},
)
LAYER = Part("layer")


@given(st.floats(1, 8), st.lists(st.floats(32, 256), min_size=1))
def test_measured_costs_are_those_of_the_table(rows, contexts):
    seconds = MeasuredCost(LANE).seconds(LAYER, rows, np.array(contexts))
    assert seconds == pytest.approx([TABLE.at(rows, context) for context in contexts])


@pytest.mark.parametrize(
    ("rows", "context", "message"),
    [
        (9, 32, r"layer on lane 'cpu': more than 8 rows were not measured \(test\)"),
        (0, 32, r"layer on lane 'cpu': fewer than 1 rows were not measured"),
        (1, 31, r"layer on lane 'cpu': contexts 31\.\.100, outside 32\.\.256, were not measured \(test\)"),
        (1, 257, r"contexts 100\.\.257, outside"),
    ],
)
def test_nothing_is_extrapolated(rows, context, message):
    with pytest.raises(OutOfRangeError, match=message):
        MeasuredCost(LANE).seconds(LAYER, rows, np.array([100.0, context]))


def test_what_was_not_measured_is_named_with_what_was():
    cost = MeasuredCost(LANE)
    with pytest.raises(
        ProfileError, match="lane 'cpu' has no measured exit after layer 5; measured there: layer, exit after layer 3"
    ):
        cost.seconds(Part("exit", 5), 1, np.array([32.0]))
    with pytest.raises(ProfileError, match="no measured draft_step"):
        cost.facts(Part("draft_step"))


def test_facts_come_with_the_numbers():
    assert MeasuredCost(LANE).facts(LAYER) == (0.1, 7, "test")
