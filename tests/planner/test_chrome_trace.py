"""A Chrome trace is valid: slices nest, arrows connect slices, and the file says what the trace says."""

import gzip
import json
from itertools import groupby, pairwise

import pytest

from decoding.trace import LaneEvent, Round, Span, Trace, Work
from planner.chrome_trace import chrome_trace, save_chrome_trace


def two_rounds(*, world="simulated") -> Trace:
    """A mirror's first two rounds: a rollout, a hit from a branch, and a verification of it."""
    return Trace(
        world=world,
        spans=[
            Span("cpu0", Work.PREFIX, 0.012, 0.030, 0, 3),
            Span("cpu0", Work.SUFFIX, 0.030, 0.050, 0, 3),
            Span("cpu0", Work.PREFIX, 0.0511, 0.070, 1, 3),
            Span("cpu1", Work.ROLLOUT_STEP, 0.0, 0.005, 0, 1),
            Span("cpu1", Work.ROLLOUT_STEP, 0.005, 0.01, 0, 1),
            Span("cpu1", Work.BRANCH_STEP, 0.031, 0.038, 0, 4),
            Span("cpu1", Work.BRANCH_STEP, 0.038, 0.045, 0, 4),
            Span("cpu1", Work.BRANCH_STEP, 0.045, 0.052, 0, 4),
            Span("cpu0->cpu1", Work.TRANSFER, 0.030, 0.0305, 0, 3),
            Span("cpu0->cpu1", Work.TRANSFER, 0.0304, 0.031, 0, 3),
        ],
        rounds=[Round(0.012, 0.0509, 2, 1, 2, (1, 7), True), Round(0.0511, 0.09, 2, 2, 3, (2, 8), None)],
        events=[LaneEvent(0.08, "cpu1", "did not answer")],
        decode_s=0.09,
    )


@pytest.fixture
def events():
    return chrome_trace({"mirror": two_rounds(), "run": two_rounds(world="measured")})["traceEvents"]


def of(events, phase):
    return [event for event in events if event["ph"] == phase]


def names_of(events, kind):
    return {event["args"]["name"] for event in of(events, "M") if event["name"] == kind}


def test_every_span_is_a_slice_in_microseconds(events):
    slices = [event for event in of(events, "X") if event["pid"] == 1 and event["cat"] != "round"]
    spans = two_rounds().spans
    assert sorted(event["ts"] for event in slices) == pytest.approx(sorted(span.start_s * 1e6 for span in spans))
    assert sum(event["dur"] for event in slices) == pytest.approx(
        sum(span.end_s - span.start_s for span in spans) * 1e6
    )
    assert {event["cat"] for event in slices} == {"target", "draft", "transfer"}


def require_no_overlap(events):
    slices = sorted(of(events, "X"), key=lambda event: (event["pid"], event["tid"], event["ts"]))
    for _, track in groupby(slices, key=lambda event: (event["pid"], event["tid"])):
        assert all(one["ts"] + one["dur"] <= other["ts"] + 1e-9 for one, other in pairwise(track))


def test_overlapping_transfers_get_a_track_each(events):
    require_no_overlap(events)
    messages = {"cpu0->cpu1 · messages", "cpu0->cpu1 · messages (2)"}
    assert names_of(events, "thread_name") == {"rounds", "cpu0 · target", "cpu1 · draft"} | messages


def test_a_lane_that_both_models_share_says_so():
    spans = [Span("cpu0", Work.ROLLOUT_STEP, 0.0, 0.01, 0, 1), Span("cpu0", Work.VERIFY, 0.01, 0.03, 0, 2)]
    made = chrome_trace({"pooled": Trace(world="measured", spans=spans, decode_s=0.03)})["traceEvents"]
    assert names_of(made, "thread_name") == {"rounds", "cpu0 · target and draft"}
    plain = Trace(world="simulated", spans=[Span("cpu0", Work.VERIFY, 0.0, 0.02, 0, 1)], decode_s=0.02)
    made = chrome_trace({"simulated": plain})["traceEvents"]
    assert not {"s", "f"} & {event["ph"] for event in made}
    assert names_of(made, "process_name") == {"simulated"}


def test_rounds_say_what_came_of_them(events):
    rounds = [event["name"] for event in of(events, "X") if event["cat"] == "round" and event["pid"] == 1]
    assert rounds == ["round 0: 1 of 2 accepted, hit", "round 1: 2 of 2 accepted"]
    assert [event["args"]["tokens"] for event in of(events, "C") if event["pid"] == 1] == [2, 5]


def test_arrows_lead_from_the_last_finished_draft_step_to_the_verification(events):
    starts = [event for event in of(events, "s") if event["pid"] == 1]
    ends = [event for event in of(events, "f") if event["pid"] == 1]
    # The step from 45 ms to 52 ms still runs when the second verification starts: its window came earlier.
    assert [event["ts"] for event in starts] == pytest.approx([5_000, 38_000])
    assert [event["ts"] for event in ends] == pytest.approx([12_000, 51_100])
    assert [event["id"] for event in starts] == [event["id"] for event in ends]
    assert len({event["id"] for event in of(events, "s")}) == 4


def test_arrow_ends_lie_on_slices_of_their_track(events):
    slices = of(events, "X")
    for end in of(events, "s") + of(events, "f"):
        assert any((event["pid"], event["tid"], event["ts"]) == (end["pid"], end["tid"], end["ts"]) for event in slices)


def test_what_befell_a_lane_is_marked(events):
    assert [event["name"] for event in of(events, "i") if event["pid"] == 1] == ["cpu1: did not answer"]


@pytest.mark.parametrize("name", ["trace.json", "deep/trace.json.gz", "trace.json.GZ"])
def test_file_holds_the_same_and_can_be_compressed(tmp_path, name):
    path = tmp_path / name
    save_chrome_trace({"mirror": two_rounds()}, path)
    content = path.read_bytes()
    assert (content[:2] == b"\x1f\x8b") == name.lower().endswith(".gz")
    text = gzip.decompress(content) if name.lower().endswith(".gz") else content
    assert json.loads(text) == chrome_trace({"mirror": two_rounds()})
    assert list(path.parent.iterdir()) == [path]


def test_every_simulated_window_gets_its_arrow(data):
    for result in data.results:
        trace = result.simulated[0]
        events = chrome_trace({result.name: trace})["traceEvents"]
        assert len(of(events, "s")) == sum(entry.num_drafted > 0 for entry in trace.rounds)
        require_no_overlap(events)
