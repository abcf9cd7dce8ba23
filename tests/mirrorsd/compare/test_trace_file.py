import gzip

import pytest

from decoding.errors import TraceError
from decoding.trace import LaneEvent
from mirrorsd.compare.trace_file import load_traces, save_traces
from sim.world import simulate
from tests.planner.synthetic import DRAFT_MIRROR, acceptance_record, machine


@pytest.fixture
def traces():
    made = simulate(DRAFT_MIRROR, machine(), acceptance_record(num_prompts=2, num_tokens=12))
    made[0].events.append(LaneEvent(0.5, "draft", "lost"))
    return [made, list(reversed(made))]


def test_traces_come_back_as_they_were(traces, tmp_path):
    path = tmp_path / "deep" / "traces.json.gz"
    save_traces(traces, path)
    assert load_traces(path) == traces
    assert {span.work for span in load_traces(path)[0][0].spans} == {span.work for span in traces[0][0].spans}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        *(gzip.compress(text, mtime=0) for text in (b"{}", b'{"format": "other"}')),
        gzip.compress(b'{"format": "mirrorsd-traces-1", "traces": [[' + b"{}," * 10_000 + b"{}]]}", mtime=0),
        gzip.compress(b"[1]", mtime=0)[:-6],
    ],
)
def test_anything_else_is_refused_by_name(content, tmp_path):
    path = tmp_path / "traces.json.gz"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=str(path)):
        load_traces(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TraceError, match="nowhere"):
        load_traces(tmp_path / "nowhere.json.gz")
