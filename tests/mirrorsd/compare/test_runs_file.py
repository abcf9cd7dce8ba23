import gzip

import pytest

from calibrate.profiling.run_anchors import RunAnchors
from decoding.errors import TraceError
from decoding.trace import LaneEvent, Trace
from mirrorsd.compare.runs import Measured, Run
from mirrorsd.compare.runs_file import load_runs, save_runs


def trace(decode_s, *events):
    return Trace(world="measured", decode_s=decode_s, events=list(events))


@pytest.fixture
def measured():
    anchors = RunAnchors({"cpu0": (0.041, 0.043), "cpu1": (0.052,)}, ((0.06, 0.07),))
    lost = trace(9.0, LaneEvent(0.5, "cpu1", "lost"))
    first = Run(trace=trace(1.5), tokens=(1, 2), at_s=1.25, anchors=anchors)
    return Measured(runs=((first, Run(trace=trace(2.5), tokens=(3,), given_up=lost)), (Run(trace=trace(3.5)),) * 2))


def test_runs_come_back_with_their_traces(measured, tmp_path):
    save_runs(measured, tmp_path / "runs.json.gz")
    found = load_runs(tmp_path / "runs.json.gz", measured.traces)
    assert found == measured
    assert found.runs == measured.runs


def test_the_file_alone_tells_every_time_that_was_taken(measured, tmp_path):
    save_runs(measured, tmp_path / "runs.json.gz")
    text = gzip.decompress((tmp_path / "runs.json.gz").read_bytes()).decode()
    assert '"decode_s":2.5' in text
    assert '"anchors":{"alone":{"cpu0":[0.041,0.043],"cpu1":[0.052]},"shared":[[0.06,0.07]],"steps":[]}' in text


@pytest.mark.parametrize(
    "content", [b"", b"text", gzip.compress(b"{}", mtime=0), gzip.compress(b'{"format": "other"}', mtime=0)]
)
def test_anything_else_is_refused_by_name(content, tmp_path):
    path = tmp_path / "runs.json.gz"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=str(path)):
        load_runs(path, [])


def test_runs_of_other_traces_are_refused(measured, tmp_path):
    save_runs(measured, tmp_path / "runs.json.gz")
    with pytest.raises(TraceError, match=r"runs\.json\.gz"):
        load_runs(tmp_path / "runs.json.gz", measured.traces[:1])
