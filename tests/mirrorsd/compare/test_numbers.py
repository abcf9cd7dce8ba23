"""Both worlds have the same numbers under the same names, and what was simulated is what was predicted."""

import pytest

from hwprofiles.profile import LatencyTable
from mirrorsd.compare.numbers import measured_numbers, predicted_numbers
from sim.evaluator import predict
from sim.world import simulate
from tests.planner.synthetic import DRAFT_MIRROR, acceptance_record, machine

TIMES = ("prefill_s", "ttft_s", "e2e_s")


READING = LatencyTable(rows=(1, 1000), contexts=(0,), seconds=((0.1,), (2.0,)), source="made up")


@pytest.fixture
def both():
    """Predicted, and of simulated traces."""
    lanes = [lane.model_copy(update={"prefill": READING, "draft_prefill": READING}) for lane in machine().lanes]
    profile = machine().model_copy(update={"lanes": tuple(lanes)})
    record = acceptance_record(num_prompts=3, num_tokens=24)
    predicted = predicted_numbers(predict(DRAFT_MIRROR, profile, record))
    return predicted, simulate(DRAFT_MIRROR, profile, record)


def test_the_prediction_has_an_interval_and_else_the_same_numbers(both):
    predicted, traces = both
    measured = measured_numbers(traces)
    assert predicted.keys() - measured.keys() == {"tpot_s_low", "tpot_s_high"}
    assert measured == pytest.approx({name: predicted[name] for name in measured})


def test_a_request_begins_with_its_prompt(both):
    _, traces = both
    measured = measured_numbers(traces)
    assert 0 < measured["prefill_s"] < measured["ttft_s"] < measured["e2e_s"]
    assert measured["e2e_s"] == pytest.approx(measured["prefill_s"] + measured["decode_s"] / len(traces))


def test_where_one_prefill_is_not_known_nothing_is_said_of_requests(both):
    _, traces = both
    traces[0].prefill_s = None
    assert [measured_numbers(traces)[name] for name in TIMES] == [None, None, None]
