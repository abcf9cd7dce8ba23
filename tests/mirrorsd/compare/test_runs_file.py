import gzip

import pytest

from calibrate.profiling.anchors import RunAnchors
from decoding.errors import TraceError
from decoding.trace import LaneEvent, Trace
from mirrorsd.compare.runs import Measured, Run
from mirrorsd.compare.runs_file import load_runs, load_traces, save_runs, save_traces
from sim.world import simulate
from tests.planner.synthetic import DRAFT_MIRROR, acceptance_record, machine


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
    made[0].events.append(LaneEvent(0.5, "draft", "lost"))
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
    assert '"anchors":{"alone":{"cpu0":[0.041,0.043],"cpu1":[0.052]},"shared":[[0.06,0.07]],"steps":[]}' in text


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
