"""Whole runs on machines with round numbers, second by second. Spans are (lane, work, start, end, rows)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decoding.record import AcceptanceRecord, RecordedTree
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.profile import Contention, LatencyTable, LinkProfile, Profile
from sim.world import simulate
from tests.sim.worlds import AUTOREGRESSIVE, PATHS, lane, machine, mirror, prompt, record, speculative, tree

HIT_MISS_END = record(prompt(draft="1010111", exit_="0100000", alternatives="0100000"))
"""With windows of two: one of two accepted and a hit, the same and a miss, and a last round with all accepted."""


def play(schedule: Schedule, profile: Profile, texts: AcceptanceRecord) -> Trace:
    [trace] = simulate(schedule, profile, texts)
    return trace


def spans(trace: Trace, *lanes: str) -> list[tuple[str, str, float, float, int]]:
    chosen = [span for span in trace.spans if not lanes or span.lane in lanes]
    chosen.sort(key=lambda span: (span.start_s, span.lane))
    return [(span.lane, span.work.value, span.start_s, span.end_s, span.rows) for span in chosen]


def rounds(trace: Trace) -> list[tuple[float, float]]:
    return [(entry.start_s, entry.end_s) for entry in trace.rounds]


def drafting(trace: Trace) -> list[tuple[str, float, float, int]]:
    return [span[1:] for span in spans(trace, "draft")]


def with_draft_step(seconds: float, dispatch_s: float = 0.0) -> Profile:
    return machine(lane("target"), lane("draft", draft_step=seconds, dispatch_s=dispatch_s))


def by_rows(*seconds: float) -> LatencyTable:
    """So many seconds for 1, 2, .. rows; the last number for all above."""
    rows = (*range(1, len(seconds) + 1), 200)
    return LatencyTable(
        rows=rows, contexts=(0,), seconds=tuple((value,) for value in (*seconds, seconds[-1])), source="by hand"
    )


def test_plain_decoding_is_one_verification_after_another() -> None:
    profile = machine(lane("target", dispatch_s=2, head=2), round_overhead_s=1)
    trace = play(AUTOREGRESSIVE, profile, record(prompt("000")))
    # one second to the lane, ten layers and the head, one second back, one second in the driver
    assert spans(trace) == [
        ("target", "verify", 1, 13, 1),
        ("target", "verify", 16, 28, 1),
        ("target", "verify", 31, 43, 1),
    ]
    assert rounds(trace) == [(0, 15), (15, 30), (30, 45)]
    assert trace.decode_s == 45
    assert [entry.hit for entry in trace.rounds] == [None] * 3


def test_synchronous_decoding_takes_turns() -> None:
    profile = machine(lane("target", dispatch_s=2), lane("draft", dispatch_s=4), round_overhead_s=1)
    trace = play(speculative(), profile, record(prompt("1011")))
    assert spans(trace) == [
        ("draft", "rollout_step", 2, 3, 1),
        ("draft", "rollout_step", 3, 4, 1),
        ("target", "verify", 7, 18, 3),
        ("draft", "rollout_step", 22, 23, 1),
        ("draft", "rollout_step", 23, 24, 1),
        ("target", "verify", 27, 38, 3),
    ]
    assert rounds(trace) == [(6, 20), (26, 40)]
    assert [(entry.num_accepted, entry.num_committed) for entry in trace.rounds] == [(1, 2), (2, 2)]


def test_a_draft_reads_two_tokens_behind_a_window_that_was_accepted_whole() -> None:
    draft = lane("draft").model_copy(update={"draft_step": by_rows(1, 3)})
    trace = play(speculative(), machine(lane("target"), draft), record(prompt("111011")))
    assert drafting(trace) == [
        ("rollout_step", 0, 1, 1),
        ("rollout_step", 1, 2, 1),
        ("rollout_step", 13, 16, 2),
        ("rollout_step", 16, 17, 1),
        ("rollout_step", 28, 29, 1),
        ("rollout_step", 29, 30, 1),
    ]


def test_a_draft_with_features_reads_the_whole_last_round_again() -> None:
    draft = lane("draft").model_copy(update={"draft_step_features": by_rows(1, 2, 5)})
    trace = play(speculative(exit_features=True), machine(lane("target"), draft), record(prompt("1111000")))
    first_steps = drafting(trace)[::2]
    assert first_steps == [
        ("rollout_step", 0, 1, 1),
        ("rollout_step", 13, 18, 3),
        ("rollout_step", 30, 32, 2),
        ("rollout_step", 44, 45, 1),
    ]


def test_on_one_lane_both_models_share_its_dispatch() -> None:
    trace = play(speculative(draft_lane="target"), machine(lane("target", dispatch_s=2)), record(prompt("11")))
    assert spans(trace) == [
        ("target", "rollout_step", 1, 2, 1),
        ("target", "rollout_step", 2, 3, 1),
        ("target", "verify", 5, 16, 3),
    ]
    assert trace.decode_s == 17


TREE_TEXT = np.array([[2, 5, 9], [-1, -1, -1], [0, 1, -1], [3, -1, -1], [1, 2, -1], [0, -1, -1]], dtype=np.int32)
"""Places of the nodes that stand, from each position of a text of six tokens."""


def tree_record(recorded: RecordedTree) -> AcceptanceRecord:
    return record(replace(prompt("000000"), tree_ranks=(TREE_TEXT[:, : recorded.depth],)), trees=(recorded,))


def test_a_dynamic_tree_is_drafted_level_by_level_and_verified_in_one_pass() -> None:
    """The first step reads what was committed, the others the nodes that are expanded."""
    eagle = RecordedTree(method="eagle3", drafter="head", depth=3, top_k=2)
    draft = lane("draft", dispatch_s=4).model_copy(update={"heads": {"head": by_rows(1, 2, 3)}})
    trace = play(tree(eagle, 6), machine(lane("target", dispatch_s=2), draft, round_overhead_s=1), tree_record(eagle))
    assert spans(trace) == [
        ("draft", "rollout_step", 2, 3, 1),
        ("draft", "rollout_step", 3, 5, 2),
        ("draft", "rollout_step", 5, 7, 2),
        ("target", "verify", 10, 21, 7),
        # two of three nodes stand in a tree of six: two tokens and the target's own are read
        ("draft", "rollout_step", 25, 28, 3),
        ("draft", "rollout_step", 28, 30, 2),
        ("draft", "rollout_step", 30, 32, 2),
        ("target", "verify", 35, 46, 7),
        ("draft", "rollout_step", 50, 52, 2),
        ("draft", "rollout_step", 52, 54, 2),
        ("draft", "rollout_step", 54, 56, 2),
        ("target", "verify", 59, 70, 7),
    ]
    assert [(entry.num_drafted, entry.num_accepted, entry.outcome[1]) for entry in trace.rounds] == [
        (6, 2, 102),
        (6, 1, 104),
        (6, 1, -1),
    ]
    assert rounds(trace) == [(9, 23), (34, 48), (58, 72)]


def test_hydra_drafts_the_nodes_that_have_children_and_medusa_drafts_at_once() -> None:
    """Of (0) (1) (00) (01) (10) (000): two nodes with children, then one."""
    for method, steps in (("hydra", [(0, 1, 1), (1, 3, 2), (3, 4, 1)]), ("medusa", [(0, 1, 1)])):
        recorded = RecordedTree(method=method, drafter="head", depth=3, paths=PATHS)
        profile = machine(lane("target"), lane("draft").model_copy(update={"heads": {"head": by_rows(1, 2, 3)}}))
        trace = play(tree(recorded, 6), profile, tree_record(recorded))
        assert [span[1:] for span in drafting(trace)[: len(steps)]] == steps
        assert trace.rounds[0].start_s == steps[-1][1]


def test_heads_and_target_share_a_lane() -> None:
    recorded = RecordedTree(method="medusa", drafter="head", depth=3, paths=PATHS)
    schedule = tree(recorded, 3, draft_lane="target")
    trace = play(schedule, machine(lane("target", dispatch_s=2, head_step=5)), tree_record(recorded))
    assert spans(trace)[:3] == [
        ("target", "rollout_step", 1, 6, 1),
        ("target", "verify", 8, 19, 4),
        ("target", "rollout_step", 21, 26, 2),
    ]


def test_streams_draft_in_the_pass_that_verifies_and_nothing_is_drafted_before_the_first() -> None:
    streams = RecordedTree(method="speculative_streaming", drafter="streams", depth=3, paths=PATHS)
    target = lane("target", dispatch_s=2).model_copy(update={"streams": {"streams": by_rows(3, 4)}})
    trace = play(tree(streams, 7), machine(target, round_overhead_s=1), tree_record(streams))
    assert spans(trace) == [
        ("target", "stream", 1, 15, 1),
        ("target", "stream", 18, 33, 8),
        ("target", "stream", 36, 51, 8),
        ("target", "stream", 54, 69, 8),
    ]
    assert rounds(trace) == [(0, 17), (17, 35), (35, 53), (53, 71)]
    assert [(entry.num_drafted, entry.num_accepted, entry.num_committed) for entry in trace.rounds] == [
        (0, 0, 1),
        (7, 0, 1),
        (7, 2, 3),
        (7, 1, 1),
    ]


def test_mirror_from_the_exit() -> None:
    link = LinkProfile(lanes=("target", "draft"), latency_s=1, bytes_per_s=48, source="by hand")
    profile = machine(lane("target", dispatch_s=2), lane("draft", dispatch_s=4), links=(link,), round_overhead_s=1)
    trace = play(mirror("exit"), profile, HIT_MISS_END)
    assert spans(trace) == [
        ("draft", "rollout_step", 2, 3, 1),
        ("draft", "rollout_step", 3, 4, 1),
        # round 0, issued at 6: four layers and the exit; six layers and the head
        ("target", "prefix", 7, 12, 3),
        ("draft", "branch_step", 8, 9, 1),
        ("target", "suffix", 12, 19, 3),
        # the exit's message: 1 s to the driver, 1 s and 3 rows * 2 ids * 8 bytes over the link, 2 s to the lane
        ("target->draft", "transfer", 13, 15, 3),
        ("draft", "branch_step", 17, 18, 3),
        ("draft", "branch_step", 18, 19, 3),
        # committed at 21; the request takes 2 s and finds the window ready, which takes 2 s back
        ("target", "prefix", 26, 31, 3),
        ("draft", "branch_step", 27, 28, 1),
        ("target", "suffix", 31, 38, 3),
        ("target->draft", "transfer", 32, 34, 3),
        ("draft", "branch_step", 36, 37, 3),
        ("draft", "branch_step", 37, 38, 3),
        # committed at 40; the request arrives at 42 and finds nothing
        ("draft", "rollout_step", 42, 43, 1),
        ("draft", "rollout_step", 43, 44, 1),
        ("target", "prefix", 47, 52, 3),
        ("draft", "branch_step", 48, 49, 1),
        ("target", "suffix", 52, 59, 3),
        ("target->draft", "transfer", 53, 55, 3),
        ("draft", "branch_step", 57, 58, 3),
        ("draft", "branch_step", 58, 59, 3),
    ]
    assert rounds(trace) == [(6, 21), (25, 40), (46, 61)]
    assert [entry.hit for entry in trace.rounds] == [True, False, None]
    assert [span.round for span in trace.spans if span.lane == "draft"] == [0] * 5 + [1] * 3 + [2] * 5


def test_mirror_from_the_draft_starts_branches_at_once() -> None:
    trace = play(mirror("draft"), machine(), HIT_MISS_END)
    assert spans(trace)[:8] == [
        ("draft", "rollout_step", 0, 1, 1),
        ("draft", "rollout_step", 1, 2, 1),
        ("draft", "branch_step", 2, 3, 1),
        ("target", "verify", 2, 13, 3),
        ("draft", "branch_step", 3, 4, 3),
        ("draft", "branch_step", 4, 5, 3),
        ("draft", "branch_step", 13, 14, 1),
        ("target", "verify", 13, 24, 3),
    ]
    assert rounds(trace) == [(2, 13), (13, 24), (26, 37)]


def test_a_request_waits_for_the_step_under_way() -> None:
    trace = play(mirror("draft"), with_draft_step(5), HIT_MISS_END)
    assert rounds(trace) == [(10, 21), (25, 36), (50, 61)]
    assert drafting(trace)[2:8] == [
        ("branch_step", 10, 15, 1),
        ("branch_step", 15, 20, 3),
        ("branch_step", 20, 25, 3),
        # asked at 21: a hit, whose window is complete at 25
        ("branch_step", 25, 30, 1),
        ("branch_step", 30, 35, 3),
        # asked at 36: a miss, so the step that began at 35 was the last
        ("branch_step", 35, 40, 3),
    ]
    assert drafting(trace)[8:10] == [("rollout_step", 40, 45, 1), ("rollout_step", 45, 50, 1)]


def test_after_a_hit_the_branch_goes_on_alone() -> None:
    trace = play(mirror("draft"), with_draft_step(8), HIT_MISS_END)
    assert drafting(trace)[2:7] == [
        ("branch_step", 16, 24, 1),
        ("branch_step", 24, 32, 3),
        # asked at 27: one of two steps is done when the step under way ends
        ("finish_step", 32, 40, 1),
        ("branch_step", 40, 48, 1),
        ("branch_step", 48, 56, 3),
    ]
    assert drafting(trace)[7:9] == [("rollout_step", 56, 64, 1), ("rollout_step", 64, 72, 1)]
    assert trace.spans[6].round == 1


def test_a_step_that_would_begin_when_the_request_arrives_does_not() -> None:
    profile = machine(lane("target", head=2), lane("draft", draft_step=4))
    trace = play(mirror("draft", num_tokens=3), profile, record(prompt("00")))
    assert drafting(trace)[3:8] == [
        ("branch_step", 12, 16, 1),
        ("branch_step", 16, 20, 4),
        ("branch_step", 20, 24, 4),
        # the request comes at 24
        ("rollout_step", 24, 28, 1),
        ("rollout_step", 28, 32, 1),
    ]


def test_hybrid_joins_the_exit_at_the_next_step() -> None:
    trace = play(mirror("hybrid"), with_draft_step(3), HIT_MISS_END)
    assert spans(trace)[2:10] == [
        ("draft", "branch_step", 6, 9, 1),
        ("target", "prefix", 6, 11, 3),
        ("draft", "branch_step", 9, 12, 3),
        ("target", "suffix", 11, 18, 3),
        ("target->draft", "transfer", 11, 11, 3),
        # six branches, until those of the draft are done
        ("draft", "branch_step", 12, 15, 6),
        ("draft", "branch_step", 15, 18, 3),
        ("draft", "branch_step", 18, 21, 1),
    ]


def test_hybrid_idles_between_its_sources() -> None:
    trace = play(mirror("hybrid"), machine(), HIT_MISS_END)
    assert drafting(trace)[2:7] == [
        ("branch_step", 2, 3, 1),
        ("branch_step", 3, 4, 3),
        ("branch_step", 4, 5, 3),
        ("branch_step", 7, 8, 3),
        ("branch_step", 8, 9, 3),
    ]


def test_with_features_the_draft_waits_and_reads_the_window_again() -> None:
    draft = lane("draft").model_copy(update={"draft_step_features": by_rows(1, 1, 2, 2, 4)})
    trace = play(mirror("exit", exit_features=True), machine(lane("target"), draft), HIT_MISS_END)
    assert drafting(trace)[2:8] == [
        # the message comes at 7: two rows of the window and three roots, then the roots
        ("branch_step", 7, 11, 5),
        ("branch_step", 11, 13, 3),
        ("branch_step", 19, 23, 5),
        ("branch_step", 23, 25, 3),
        # a miss at 26: what was committed is read again, each token with its feature
        ("rollout_step", 26, 27, 2),
        ("rollout_step", 27, 28, 1),
    ]


@pytest.mark.parametrize("contended", [False, True])
def test_no_request_overtakes_the_exit_message(contended: bool) -> None:
    link = LinkProfile(lanes=("target", "draft"), latency_s=10, bytes_per_s=1e18, source="by hand")
    slow = Contention(lanes=("target", "draft"), slowdown=(1, 2), source="by hand")
    draft = lane("draft").model_copy(update={"draft_step_features": by_rows(1, 2, 4)})
    profile = machine(lane("target"), draft, links=(link,), contention=(slow,) if contended else ())
    trace = play(mirror("exit", exit_features=True), profile, HIT_MISS_END)
    # rounds are committed 12 s after they begin, but their exit messages arrive after 15 s
    assert rounds(trace) == [(2, 14), (20, 32), (38, 50)]
    assert drafting(trace)[2:] == [
        # a hit, but its branch has not begun: the round's two tokens are read as after a miss
        ("finish_step", 17, 19, 2),
        ("finish_step", 19, 20, 1),
        ("rollout_step", 35, 37, 2),
        ("rollout_step", 37, 38, 1),
    ]


def test_lanes_slow_each_other_while_both_compute() -> None:
    slow = Contention(lanes=("draft", "target"), slowdown=(3, 2), source="by hand")
    trace = play(mirror("draft"), machine(contention=(slow,)), record(prompt("0000")))
    assert spans(trace)[:7] == [
        ("draft", "rollout_step", 0, 1, 1),
        ("draft", "rollout_step", 1, 2, 1),
        # three steps of three seconds, in which the target does 4.5 of its 11
        ("draft", "branch_step", 2, 5, 1),
        ("target", "verify", 2, 17.5, 3),
        ("draft", "branch_step", 5, 8, 3),
        ("draft", "branch_step", 8, 11, 3),
        ("draft", "rollout_step", 17.5, 18.5, 1),
    ]


def test_a_step_speeds_up_when_the_target_stops() -> None:
    slow = Contention(lanes=("target", "draft"), slowdown=(1, 2), source="by hand")
    profile = machine(lane("target"), lane("draft", draft_step=4), contention=(slow,))
    trace = play(mirror("draft"), profile, record(prompt("0000")))
    # the second branch step has done 1.5 of its 4 seconds when the target ends at 19, and goes on alone
    assert drafting(trace)[2:5] == [
        ("branch_step", 8, 16, 1),
        ("branch_step", 16, 21.5, 3),
        ("rollout_step", 21.5, 25.5, 1),
    ]


def test_each_prompt_has_a_trace_from_time_zero() -> None:
    traces = simulate(AUTOREGRESSIVE, machine(), record(prompt("00"), prompt("000", prompt_length=7)))
    assert [rounds(trace) for trace in traces] == [[(0, 11), (11, 22)], [(0, 11), (11, 22), (22, 33)]]


def test_a_run_is_the_same_every_time() -> None:
    profile = machine(contention=(Contention(lanes=("target", "draft"), slowdown=(1.3, 1.7), source="by hand"),))
    assert play(mirror("hybrid"), profile, HIT_MISS_END) == play(mirror("hybrid"), profile, HIT_MISS_END)
