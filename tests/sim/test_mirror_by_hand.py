"""Mirror rounds on machines with round numbers, second by second. Spans are (lane, work, start, end, rows)."""

import pytest

from hwprofiles.profile import Contention, LinkProfile
from tests.sim.playing import HIT_MISS_END, by_rows, drafting, play, rounds, spans, with_draft_step
from tests.sim.worlds.machines import lane, machine
from tests.sim.worlds.records import prompt, record
from tests.sim.worlds.schedules import mirror


def test_mirror_from_the_exit():
    link = LinkProfile(lanes=("target", "draft"), latency_s=1, bytes_per_s=16, source="by hand")
    profile = machine(lane("target", dispatch_s=2), lane("draft", dispatch_s=4), links=(link,), round_overhead_s=1)
    trace = play(mirror("exit"), profile, HIT_MISS_END)
    assert spans(trace) == [
        ("draft", "rollout_step", 2, 3, 1),
        ("draft", "rollout_step", 3, 4, 1),
        # 2 s after it the window leaves the draft: 2 ids and log-probs of 8 bytes, and 1 s of latency
        ("draft->target", "transfer", 6, 8, 2),
        # round 0, issued at 8: four layers and the exit; six layers and the head
        ("target", "prefix", 9, 14, 3),
        ("draft", "branch_step", 10, 11, 1),
        ("target", "suffix", 14, 21, 3),
        # the exit's message: 1 s to the driver, 1 s and 3 rows * 2 ids * 8 bytes over the link, 2 s to the lane
        ("target->draft", "transfer", 15, 19, 3),
        ("draft", "branch_step", 21, 22, 3),
        ("draft", "branch_step", 22, 23, 3),
        # committed at 23; 8 bytes of verdict and 2 s later the window is found ready, which takes 2 s and 2 s back
        ("target->draft", "transfer", 23, 24.5, 2),
        ("draft->target", "transfer", 28.5, 30.5, 2),
        ("target", "prefix", 31.5, 36.5, 3),
        ("draft", "branch_step", 32.5, 33.5, 1),
        ("target", "suffix", 36.5, 43.5, 3),
        ("target->draft", "transfer", 37.5, 41.5, 3),
        ("draft", "branch_step", 43.5, 44.5, 3),
        ("draft", "branch_step", 44.5, 45.5, 3),
        # committed at 45.5; the verdict arrives at 49 and finds nothing
        ("target->draft", "transfer", 45.5, 47, 2),
        ("draft", "rollout_step", 49, 50, 1),
        ("draft", "rollout_step", 50, 51, 1),
        ("draft->target", "transfer", 53, 55, 2),
        ("target", "prefix", 56, 61, 3),
        ("draft", "branch_step", 57, 58, 1),
        ("target", "suffix", 61, 68, 3),
        ("target->draft", "transfer", 62, 66, 3),
        ("draft", "branch_step", 68, 69, 3),
        ("draft", "branch_step", 69, 70, 3),
    ]
    assert rounds(trace) == [(8, 23), (30.5, 45.5), (55, 70)]
    assert [entry.hit for entry in trace.rounds] == [True, False, None]
    assert [span.round for span in trace.spans if span.lane == "draft"] == [0] * 5 + [1] * 3 + [2] * 5


def test_a_request_waits_for_the_step_under_way():
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


def test_after_a_hit_the_branch_goes_on_alone():
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


def test_a_step_that_would_begin_when_the_request_arrives_does_not():
    profile = machine(lane("target", lm_head=2), lane("draft", draft_step=4))
    trace = play(mirror("draft", num_tokens=3), profile, record(prompt("00")))
    assert drafting(trace)[3:8] == [
        ("branch_step", 12, 16, 1),
        ("branch_step", 16, 20, 4),
        ("branch_step", 20, 24, 4),
        # the request comes at 24
        ("rollout_step", 24, 28, 1),
        ("rollout_step", 28, 32, 1),
    ]


def test_hybrid_joins_the_exit_at_the_next_step():
    trace = play(mirror("hybrid"), with_draft_step(3), HIT_MISS_END)
    assert spans(trace)[2:9] == [
        ("draft", "branch_step", 6, 9, 1),
        ("target", "prefix", 6, 11, 3),
        ("draft", "branch_step", 9, 12, 3),
        ("target", "suffix", 11, 18, 3),
        # six branches, until those of the draft are done
        ("draft", "branch_step", 12, 15, 6),
        ("draft", "branch_step", 15, 18, 3),
        ("draft", "branch_step", 18, 21, 1),
    ]


def test_hybrid_idles_between_its_sources():
    trace = play(mirror("hybrid"), machine(), HIT_MISS_END)
    assert drafting(trace)[2:7] == [
        ("branch_step", 2, 3, 1),
        ("branch_step", 3, 4, 3),
        ("branch_step", 4, 5, 3),
        ("branch_step", 7, 8, 3),
        ("branch_step", 8, 9, 3),
    ]


def test_with_features_the_draft_waits_and_reads_the_window_again():
    tables = {
        "draft_step_features": by_rows(1, 1, 2),
        "draft_step": by_rows(1, 1, 2),
        "draft_start": by_rows(9, 9, 9, 9, 4),
    }
    draft = lane("draft").model_copy(update=tables)
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
def test_no_verdict_overtakes_the_exit_message(contended):
    link = LinkProfile(lanes=("target", "draft"), latency_s=0, bytes_per_s=4, source="by hand")
    slow = Contention(lanes=("target", "draft"), slowdown=(1, 2), source="by hand")
    tables = dict.fromkeys(("draft_step_features", "draft_start"), by_rows(1, 2, 4))
    draft = lane("draft").model_copy(update=tables)
    profile = machine(lane("target"), draft, links=(link,), contention=(slow,) if contended else ())
    trace = play(mirror("exit", exit_features=True), profile, HIT_MISS_END)
    assert spans(trace)[2:12] == [
        ("draft->target", "transfer", 2, 6, 2),
        ("target", "prefix", 6, 11, 3),
        ("target", "suffix", 11, 18, 3),
        ("target->draft", "transfer", 11, 23, 3),
        # the verdict of 18 leaves when the exit's message has, and finds the step for its roots under way
        ("draft", "branch_step", 23, 27, 5),
        ("target->draft", "transfer", 23, 25, 2),
        # a hit of which one token is there
        ("draft", "finish_step", 27, 28, 1),
        ("draft->target", "transfer", 28, 32, 2),
        ("target", "prefix", 32, 37, 3),
        ("target", "suffix", 37, 44, 3),
    ]
    assert rounds(trace) == [(6, 18), (32, 44), (60, 72)]


def test_a_step_speeds_up_when_the_target_stops():
    slow = Contention(lanes=("target", "draft"), slowdown=(1, 2), source="by hand")
    profile = machine(lane("target"), lane("draft", draft_step=4), contention=(slow,))
    trace = play(mirror("draft"), profile, record(prompt("0000")))
    # the second branch step has done 1.5 of its 4 seconds when the target ends at 19, and goes on alone
    assert drafting(trace)[2:5] == [
        ("branch_step", 8, 16, 1),
        ("branch_step", 16, 21.5, 3),
        ("rollout_step", 21.5, 25.5, 1),
    ]
