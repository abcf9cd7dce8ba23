"""Lanes of several devices: a share each, and collectives over the links between them."""

import math

import pytest

from costs.cost_model import all_gather_s, all_reduce_s
from decoding.trace import Work
from hwprofiles.lane_profile import DeviceGroup
from hwprofiles.profile import Profile
from sim.evaluator import predict
from sim.world import simulate
from tests.sim.playing import HIT_MISS_END, play
from tests.sim.worlds.at_random import random_prompt
from tests.sim.worlds.machines import NUM_LAYERS, lane, machine, reading
from tests.sim.worlds.records import LOOKUP, NUM_STREAMS, TREES, prompt, record
from tests.sim.worlds.schedules import AUTOREGRESSIVE, mirror, speculative

RING = DeviceGroup(
    num_devices=8,
    latency_s=0.125,
    bytes_per_s=64.0,
    reduced_bytes_per_row=16.0,
    gathered_bytes_per_row=4.0,
    all_reduces={"layer": 2, "prefill": 2 * NUM_LAYERS},
    all_gathers={"lm_head": 1},
    source="by hand",
)
TRACKS = RING.model_copy(update={"num_devices": 4, "all_reduces": {"draft_step": 2}, "all_gathers": {}})
SPEED = {"latency_s": RING.latency_s, "bytes_per_s": RING.bytes_per_s}
TEXTS = record(prompt("000"))


LINK = {"latency_s": 0.25, "bytes_per_s": 8.0}
SIZES = [1, 2, 3, 4, 7, 8]


@pytest.mark.parametrize("num_bytes", [1.0, 48.0])
@pytest.mark.parametrize("num_devices", SIZES)
def test_a_ring_reduces_in_twice_n_minus_one_steps_of_an_nth_a_tree_up_and_down_its_levels_and_the_faster_is_taken(
    num_devices, num_bytes
):
    """Eight devices reduce one byte by the tree, and 48 by the ring."""
    ring_s = 2 * (num_devices - 1) * (0.25 + num_bytes / num_devices / 8.0)
    tree_s = 2 * math.ceil(math.log2(num_devices)) * (0.25 + num_bytes / 8.0)
    assert all_reduce_s(num_bytes, num_devices, **LINK) == pytest.approx(min(ring_s, tree_s))


@pytest.mark.parametrize("num_devices", SIZES)
def test_gathering_moves_the_shares_of_the_others(num_devices):
    moved_s = (num_devices - 1) / num_devices * 48 / 8.0
    latencies_s = math.ceil(math.log2(num_devices)) * 0.25
    assert all_gather_s(48.0, num_devices, **LINK) == pytest.approx(moved_s + latencies_s)


def parallel(target: DeviceGroup | None, draft: DeviceGroup | None = None) -> Profile:
    return machine(
        lane("target").model_copy(update={"group": target}), lane("draft").model_copy(update={"group": draft})
    )


def test_a_tensor_parallel_pass_has_two_all_reduces_a_layer_and_gathers_candidates():
    verify_s = 11 + 2 * NUM_LAYERS * all_reduce_s(16, 8, **SPEED) + all_gather_s(4, 8, **SPEED)
    assert all_reduce_s(16, 8, **SPEED) == 2 * 7 / 8 * 16 / 64 + 2 * 7 * 0.125
    assert predict(AUTOREGRESSIVE, parallel(RING), TEXTS).tpot_s == pytest.approx(verify_s, abs=1e-9)
    [trace] = simulate(AUTOREGRESSIVE, parallel(RING), TEXTS)
    assert trace.decode_s == pytest.approx(3 * verify_s, abs=1e-9)


def test_prompts_are_read_together_too():
    profile = parallel(RING)
    readers = [reading(one, prefill=1.0, draft_prefill=1.0, head_prefill=1.0) for one in profile.lanes]
    found = predict(
        AUTOREGRESSIVE, profile.model_copy(update={"lanes": tuple(readers)}), record(prompt("0", prompt_length=4))
    )
    assert found.prefill_s == pytest.approx(3 * 1.0 + 2 * NUM_LAYERS * all_reduce_s(3 * 16, 8, **SPEED), abs=1e-9)


def test_collectives_are_spans_on_the_links_of_their_lane():
    trace = play(mirror("draft"), parallel(RING, TRACKS), HIT_MISS_END)
    verify = next(span for span in trace.spans if span.work is Work.VERIFY)
    inside = [span for span in trace.spans if span.lane == "target->target" and span.start_s < verify.end_s]
    assert len(inside) == 2 * NUM_LAYERS + 1
    assert {round(span.end_s - span.start_s, 9) for span in inside} == {
        round(all_reduce_s(3 * 16, 8, **SPEED), 9),
        round(all_gather_s(3 * 4, 8, **SPEED), 9),
    }
    assert all(span.work is Work.TRANSFER for span in inside)
    assert inside[-1].end_s == pytest.approx(verify.end_s, abs=1e-9)
    steps = [span for span in trace.spans if span.lane == "draft"]
    assert len([span for span in trace.spans if span.lane == "draft->draft"]) == 2 * len(steps)


@pytest.mark.parametrize(
    ("schedule", "works", "num_rows", "num_guesses"),
    [
        (mirror("draft", num_tokens=4, draft_streams=1), [Work.BRANCH_STEP], 10, 5),
        (mirror("draft", num_tokens=4, draft_streams=2), [Work.ROLLOUT_STEP, Work.FINISH_STEP], 3, 2),
        (speculative(4, draft_streams=2), [Work.ROLLOUT_STEP], 3, 2),
    ],
)
def test_guesses_are_exchanged_after_the_step_that_verifies_them_and_by_fewer_rows(
    schedule, works, num_rows, num_guesses
):
    """Five branches with a guess each have ten rows of the draft and five of its streams, a window three and two."""
    group = TRACKS.model_copy(update={"bytes_per_s": 6400.0, "all_reduces": {"draft_step": 2, "draft_streams": 1}})
    of_all = {"trees": TREES, "chains": (LOOKUP,), "num_streams": NUM_STREAMS}
    texts = record(random_prompt(1, num_tokens=20, vocabulary=8, prompt_length=3), **of_all)
    trace = play(schedule, parallel(None, group), texts)
    step = next(span for span in trace.spans if span.work in works and span.rows == num_rows)
    inside = [span for span in trace.spans if span.lane == "draft->draft" and step.start_s <= span.start_s < step.end_s]
    speed = SPEED | {"bytes_per_s": 6400.0}
    expected = [all_reduce_s(16 * rows, 4, **speed) for rows in (num_rows, num_rows, num_guesses)]
    assert [span.end_s - span.start_s for span in inside] == pytest.approx(expected, abs=1e-9)
    assert inside[-1].end_s == pytest.approx(step.end_s, abs=1e-9)
    assert step.end_s - step.start_s == pytest.approx(1 + 1 + sum(expected), abs=1e-9)


def test_a_window_makes_all_reduces_as_many_times_larger():
    group = RING.model_copy(update={"all_gathers": {}})
    narrow = predict(AUTOREGRESSIVE, parallel(group), TEXTS).tpot_s
    wide = predict(speculative(3), parallel(group), record(prompt("0000"))).bottlenecks.target_verify / 4
    assert wide - narrow == pytest.approx(2 * NUM_LAYERS * 3 * 2 * 7 / 8 * 16 / 64, abs=1e-9)


def test_a_parallel_track_draft_synchronises_twice_a_step():
    sync_s = all_reduce_s(16, 4, **SPEED)
    schedule, texts = speculative(2), record(prompt("0"))
    alone, together = (predict(schedule, parallel(None, group), texts).decode_s for group in (None, TRACKS))
    assert together - alone == pytest.approx(2 * 2 * sync_s, abs=1e-9)
