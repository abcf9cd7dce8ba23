"""Whole runs on machines with round numbers, second by second. Spans are (lane, work, start, end, rows)."""

from dataclasses import replace

import numpy as np
import pytest

from decoding.record import AcceptanceRecord, RecordedTree
from sim.batch_prediction import BatchPredictor
from sim.evaluator import predict
from sim.world import simulate
from tests.sim.playing import by_rows, drafting, play, rounds, spans
from tests.sim.worlds.machines import lane, machine, with_overheads
from tests.sim.worlds.records import PATHS, prompt, record
from tests.sim.worlds.schedules import AUTOREGRESSIVE, mirror, speculative, tree


def test_plain_decoding_is_one_verification_after_another():
    profile = machine(lane("target", dispatch_s=2, lm_head=2), round_overhead_s=1)
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


def test_synchronous_decoding_takes_turns():
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


def test_a_draft_reads_two_tokens_behind_a_window_that_was_accepted_whole():
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


@pytest.mark.parametrize("draft_lane", ["draft", "target"])
def test_a_draft_that_reads_every_verified_row_again_does_so_after_the_verification_wherever_it_is(draft_lane):
    lanes = [lane(name).model_copy(update={"draft_reads": by_rows(1, 2, 5)}) for name in ("target", "draft")]
    schedule, texts = speculative().model_copy(update={"draft_lane": draft_lane}), record(prompt("1011"))
    assert rounds(play(schedule, machine(*lanes), texts)) == [(2, 18), (20, 36)]  # 11 seconds, and 5 for three rows
    assert predict(schedule, machine(*lanes), texts).decode_s == pytest.approx(36)
    both = replace(texts, prompts=texts.prompts * 2)
    many = by_rows(1, 2, 5, 6, 7, 9)
    lanes = [one.model_copy(update={"draft_reads": many}) for one in lanes]
    batch = BatchPredictor(machine(*lanes), both).predict(schedule, 2)
    assert batch.decode_s == pytest.approx(2 * (2 + 11 + 9))


def test_a_draft_with_features_reads_the_whole_last_round_again():
    draft = lane("draft").model_copy(update={"draft_step_features": by_rows(1, 2, 5)})
    trace = play(speculative(exit_features=True), machine(lane("target"), draft), record(prompt("1111000")))
    first_steps = drafting(trace)[::2]
    assert first_steps == [
        ("rollout_step", 0, 1, 1),
        ("rollout_step", 13, 18, 3),
        ("rollout_step", 30, 32, 2),
        ("rollout_step", 44, 45, 1),
    ]


def test_on_one_lane_both_models_share_its_dispatch():
    trace = play(speculative(draft_lane="target"), machine(lane("target", dispatch_s=2)), record(prompt("11")))
    assert spans(trace) == [
        ("target", "rollout_step", 1, 2, 1),
        ("target", "rollout_step", 2, 3, 1),
        ("target", "verify", 5, 16, 3),
    ]
    assert trace.decode_s == 17


def test_first_steps_of_rollouts_and_branches_take_more():
    draft = with_overheads(lane("draft"), {"first_step": 4.0, "first_step:head": 6.0})
    trace = play(speculative(), machine(lane("target"), draft), record(prompt("1011")))
    assert drafting(trace) == [
        ("rollout_step", 0, 5, 1),
        ("rollout_step", 5, 6, 1),
        ("rollout_step", 17, 22, 1),
        ("rollout_step", 22, 23, 1),
    ]
    missed = play(mirror("draft"), machine(lane("target"), draft), record(prompt("000")))
    steps = [(end - start, work) for work, start, end, _ in drafting(missed)]
    assert steps.count((5, "rollout_step")) == steps.count((1, "rollout_step")) == 3
    branches = [taken for taken, work in steps if work == "branch_step"]
    assert branches[:6] == [1, 5, 1, 1, 5, 1], "the window's last token, the roots, and what follows them"


TREE_TEXT = np.array([[2, 5, 9], [-1, -1, -1], [0, 1, -1], [3, -1, -1], [1, 2, -1], [0, -1, -1]], dtype=np.int32)
"""Places of the nodes that stand, from each position of a text of six tokens."""


def tree_record(recorded: RecordedTree) -> AcceptanceRecord:
    return record(replace(prompt("000000"), tree_ranks=(TREE_TEXT[:, : recorded.depth],)), trees=(recorded,))


def test_a_dynamic_tree_is_drafted_level_by_level_and_verified_in_one_pass():
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


def test_hydra_drafts_the_nodes_that_have_children_and_medusa_drafts_at_once():
    """Of (0) (1) (00) (01) (10) (000): two nodes with children, then one."""
    for method, steps in (("hydra", [(0, 1, 1), (1, 3, 2), (3, 4, 1)]), ("medusa", [(0, 1, 1)])):
        recorded = RecordedTree(method=method, drafter="head", depth=3, paths=PATHS)
        profile = machine(lane("target"), lane("draft").model_copy(update={"heads": {"head": by_rows(1, 2, 3)}}))
        trace = play(tree(recorded, 6), profile, tree_record(recorded))
        assert [span[1:] for span in drafting(trace)[: len(steps)]] == steps
        assert trace.rounds[0].start_s == steps[-1][1]


def test_streams_draft_in_the_pass_that_verifies_and_nothing_is_drafted_before_the_first():
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


def test_each_prompt_has_a_trace_from_time_zero():
    traces = simulate(AUTOREGRESSIVE, machine(), record(prompt("00"), prompt("000", prompt_length=7)))
    assert [rounds(trace) for trace in traces] == [[(0, 11), (11, 22)], [(0, 11), (11, 22), (22, 33)]]
