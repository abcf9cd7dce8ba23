import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.profiling.anchors import RunAnchors
from costs.cost_model import cost_of
from costs.prices import pass_s
from decoding.errors import TraceError
from decoding.schedule import Schedule
from decoding.trace import LaneEvent, Trace
from hwprofiles.latency_table import Anchor
from hwprofiles.profile import Contention
from mirrorsd.compare.runs import (
    Measured,
    Run,
    anchor_context,
    expected_anchors,
    load_runs,
    load_traces,
    pace,
    save_runs,
    save_traces,
)
from sim.evaluator import predict
from sim.world import simulate
from tests.planner.synthetic import DRAFT_MIRROR, acceptance_record, machine

PROFILE, RECORD = machine(), acceptance_record(num_prompts=3, num_tokens=24)
EXPECTED = expected_anchors(PROFILE)
SPLIT = Schedule(method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=2)
PREDICTION = predict(SPLIT, PROFILE, RECORD)
paces = st.floats(0.2, 5.0)


def paced(schedule=SPLIT, prediction=PREDICTION, *, shared=(), profile=PROFILE, **factors):
    """The pace of a run whose anchors took so many times what is expected of them alone."""
    alone = {lane: tuple(factor * EXPECTED[lane] for factor in own) for lane, own in factors.items()}
    at_once = tuple((EXPECTED["target"] * target, EXPECTED["draft"] * draft) for target, draft in shared)
    run = Run(trace=Trace(world="measured"), anchors=RunAnchors(alone, at_once))
    return pace(run, schedule, prediction, profile)


def test_anchors_are_those_of_calibration_or_a_verification_by_the_tables():
    anchor = Anchor(context=70, seconds=0.5)
    lanes = (PROFILE.lanes[0].model_copy(update={"anchor": anchor}), *PROFILE.lanes[1:])
    profile = PROFILE.model_copy(update={"lanes": lanes})
    found = expected_anchors(profile)
    assert anchor_context(profile) == 70
    assert found["target"] == 0.5
    assert found["draft"] == pytest.approx(pass_s(cost_of(PROFILE.lane("draft")), 30, 1, 70))
    assert EXPECTED["target"] == pytest.approx(pass_s(cost_of(PROFILE.lane("target")), 30, 1, 64))


@given(paces)
def test_a_machine_that_is_slower_by_a_factor_has_that_pace(factor):
    assert paced(target=[factor] * 3, draft=[factor] * 2) == pytest.approx(factor)


@given(paces, paces)
def test_lanes_count_by_their_share_of_the_predicted_work(target, draft):
    share = PREDICTION.target_busy_s / (PREDICTION.target_busy_s + PREDICTION.exposed_draft_s)
    assert paced(target=[target] * 4, draft=[draft]) == pytest.approx(share * target + (1 - share) * draft)
    assert 0.5 < share < 1


def test_anchors_of_a_runs_own_lanes_count_alike_and_without_any_the_pace_is_that_of_calibration():
    assert paced(target=[1.0, 2.0, 3.0, 4.0]) == pytest.approx(2.5)
    assert paced(target=[1.2], both=[9.0], draft=[]) == pytest.approx(1.2)
    assert paced() == 1.0


def mirrored(slowdown=None):
    """Predicted on a machine whose lanes cost each other nothing, but their anchors `slowdown`."""
    entry = Contention(lanes=("target", "draft"), slowdown=(1, 1), anchor_slowdown=slowdown, source="a test")
    profile = PROFILE.model_copy(update={"contention": (entry,)})
    return profile, predict(DRAFT_MIRROR, profile, RECORD)


@given(paces)
def test_of_lanes_at_work_at_once_anchors_at_once_tell(factor):
    profile, prediction = mirrored((1.2, 1.3))
    overlap_s, target_s, draft_s = prediction.hidden_draft_s, prediction.target_busy_s, prediction.exposed_draft_s
    assert 0.05 < overlap_s / target_s < 1
    found = paced(
        DRAFT_MIRROR,
        prediction,
        profile=profile,
        target=[1.0],
        draft=[1.0],
        shared=[(1.2 * factor, 9.0), (1.2 * factor, 1.0)],
    )
    assert found == pytest.approx((target_s - overlap_s + overlap_s * factor + draft_s) / (target_s + draft_s))


def test_where_none_were_taken_at_once_those_alone_tell():
    profile, prediction = mirrored()
    assert paced(DRAFT_MIRROR, prediction, profile=profile, target=[1.5], draft=[1.5]) == pytest.approx(1.5)
    seen = paced(DRAFT_MIRROR, prediction, profile=profile, target=[1.5], draft=[1.5], shared=[(4.0, 4.0)])
    assert seen == pytest.approx(1.5), "nobody knows what they took when this was calibrated"


def trace(decode_s, *events):
    return Trace(world="measured", decode_s=decode_s, events=list(events))


@pytest.fixture
def measured():
    anchors = RunAnchors({"cpu0": (0.041, 0.043), "cpu1": (0.052,)}, ((0.06, 0.07),))
    lost = trace(9.0, LaneEvent(0.5, "cpu1", "lost"))
    first = Run(trace=trace(1.5), tokens=(1, 2), at_s=1.25, anchors=anchors)
    return Measured(runs=((first, Run(trace=trace(2.5), tokens=(3,), given_up=lost)), (Run(trace=trace(3.5)),) * 2))


def test_traces_come_back_as_they_were(tmp_path):
    made = simulate(DRAFT_MIRROR, machine(), acceptance_record(num_prompts=2, num_tokens=12))
    made[0].events += [LaneEvent(0.5, "draft", "lost"), LaneEvent(0.5, "draft", "full", is_loss=False)]
    traces, path = [made, list(reversed(made))], tmp_path / "deep" / "traces.json.gz"
    save_traces(traces, path)
    assert load_traces(path) == traces
    assert {span.work for span in load_traces(path)[0][0].spans} == {span.work for span in made[0].spans}


def test_runs_come_back_with_their_traces_and_the_file_alone_tells_every_time(measured, tmp_path):
    save_runs(measured, tmp_path / "runs.json.gz")
    found = load_runs(tmp_path / "runs.json.gz", measured.traces)
    assert found == measured
    assert found.runs == measured.runs
    text = gzip.decompress((tmp_path / "runs.json.gz").read_bytes()).decode()
    assert '"decode_s":2.5' in text
    assert '"anchors":{"alone":{"cpu0":[0.041,0.043],"cpu1":[0.052]},"shared":[[0.06,0.07]]}' in text


@pytest.mark.parametrize("load", [load_traces, lambda path: load_runs(path, [])])
@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"text",
        *(gzip.compress(text, mtime=0) for text in (b"{}", b'{"format": "other"}')),
        gzip.compress(b'{"format": "mirrorsd-traces-1", "traces": [[' + b"{}," * 10_000 + b"{}]]}", mtime=0),
        gzip.compress(b"[1]", mtime=0)[:-6],
    ],
)
def test_anything_else_is_refused_by_name(content, load, tmp_path):
    path = tmp_path / "saved.json.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError, match=str(path)):
        load(path)


def test_runs_of_other_traces_are_refused(measured, tmp_path):
    save_runs(measured, tmp_path / "runs.json.gz")
    with pytest.raises(TraceError, match=r"runs\.json\.gz"):
        load_runs(tmp_path / "runs.json.gz", measured.traces[:1])
