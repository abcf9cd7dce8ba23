"""Texts of other lengths than a profile was calibrated for: what is predicted of them, and what is said."""

import random
from dataclasses import replace
from itertools import product
from math import hypot, log
from pathlib import Path

import numpy as np
import pytest

from decoding.errors import OutOfRangeError
from decoding.schedule import Schedule
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.latency_table import Anchor, LatencyTable
from hwprofiles.profile import load_profile
from mirrorsd.compare.calibrated_lengths import calibrated_contexts, reach_in_words, reaching, require_reach
from mirrorsd.compare.extrapolated_tables import Tokens, with_longer_tables
from sim.evaluator import predict
from tests.calibrate.profiling.fake_machine import asked as fake_machine
from tests.planner.synthetic import acceptance_record, machine

LANES = ("target", "draft")
SCHEDULES = [
    Schedule(method="autoregressive", target_lane="target"),
    Schedule(method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=2),
]


def narrowed(profile, **contexts):
    """The profile with the target's layers of some lanes timed for these contexts."""
    return profile.model_copy(
        update={
            "lanes": tuple(
                lane.model_copy(update={"layer": lane.layer.model_copy(update={"contexts": contexts[lane.name]})})
                if lane.name in contexts
                else lane
                for lane in profile.lanes
            )
        }
    )


def record_of(prompt_length, num_tokens):
    record = acceptance_record(num_prompts=1, num_tokens=num_tokens)
    return replace(record, prompts=(replace(record.prompts[0], prompt_length=prompt_length),))


def one_lane(layer, name="openvino:CPU"):
    """A machine of one lane, of which the layer alone is known."""
    lane = LaneProfile(name=name, device=name, cores=(0,), dispatch_s=0.0, layer=layer)
    return machine().model_copy(update={"lanes": (lane,), "links": (), "contention": ()})


def times(contexts, *lines, error=0.0):
    return LatencyTable(
        rows=tuple(range(1, len(lines) + 1)), contexts=contexts, seconds=lines, relative_error=error, source="made up"
    )


def test_a_range_is_what_all_lanes_in_use_were_calibrated_for():
    profile = narrowed(machine(), target=(10, 50, 400), draft=(20, 50, 500), both=(300, 310, 320))
    assert calibrated_contexts(profile, LANES) == (20, 400)
    assert calibrated_contexts(profile, ["both"]) == (300, 320)


@pytest.mark.parametrize(("prompt_length", "num_tokens"), [(21, 60), (342, 60), (200, 202)])
def test_texts_that_lie_within_change_nothing(prompt_length, num_tokens):
    """The first round begins with all but one token of the prompt cached, the last with all but one of the text."""
    profile, record = narrowed(machine(), target=(20, 50, 400)), record_of(prompt_length, num_tokens)
    assert reaching(profile, record, ["target"]) == (profile, None)
    require_reach(profile, record, ["target"])


@pytest.mark.parametrize(("prompt_length", "num_tokens"), [(20, 60), (343, 60), (200, 203)])
def test_texts_beyond_are_priced_with_a_warning_that_names_the_command(prompt_length, num_tokens):
    profile, record = narrowed(machine(), target=(20, 50, 400)), record_of(prompt_length, num_tokens)
    longer, warning = reaching(profile, record, ["target"], sides=("p.yaml", "long.npz"))
    require_reach(longer, record, ["target"])
    assert warning.startswith(
        f"long.npz: its texts have {prompt_length - 1} to {prompt_length + num_tokens - 2} cached"
    )
    assert "p.yaml was calibrated for 20 to 400. " in warning
    assert " are extrapolated " in warning
    assert warning.endswith(
        f"give `mirrorsd calibrate` the prompts that were recorded (--prompts) and --max-new-tokens {num_tokens}"
    )


def test_texts_that_are_cut_are_as_long_as_they_are_used():
    profile, record = narrowed(machine(), target=(20, 50, 400)), record_of(343, 60)
    assert reaching(profile, record, ["target"], max_new_tokens=59) == (profile, None)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: one.method)
def test_what_grows_in_a_straight_line_is_predicted_as_if_it_had_been_measured(schedule):
    """Of the made-up machine every time grows in one with the context; its interval widens with the distance."""
    within, beyond, far = record_of(1000, 60), record_of(4000, 60), record_of(8000, 60)
    with pytest.raises(OutOfRangeError):
        predict(schedule, machine(), beyond)
    known, near = (predict(schedule, machine(), one) for one in (within, record_of(1500, 60)))
    one, other = (predict(schedule, reaching(machine(), text, LANES)[0], text) for text in (beyond, far))
    assert one.num_rounds == other.num_rounds == known.num_rounds
    by_token = (near.tpot_s - known.tpot_s) / 500
    assert one.tpot_s == pytest.approx(known.tpot_s + 3000 * by_token)
    assert other.tpot_s == pytest.approx(known.tpot_s + 7000 * by_token)
    assert known.relative_error < one.relative_error < other.relative_error


def test_the_interval_is_wider_by_the_error_of_the_slope_times_the_distance():
    """Ends that are off by 10 % of 1 and 3 ms, and a slope that bends by 30 %, over another 100 tokens of 200."""
    tokens = Tokens.of(record_of(301, 1))
    layer = (
        with_longer_tables(one_lane(times((0, 200), (1e-3, 3e-3), error=0.1), "cpu0"), ["cpu0"], tokens).lanes[0].layer
    )
    assert layer.contexts == (0, 200, 300)
    assert layer.seconds[0] == pytest.approx((1e-3, 3e-3, 4e-3))
    slope_error_s = hypot(0.1 * hypot(1e-3, 3e-3) / 200, 0.3 * 1e-5)
    assert layer.relative_error == pytest.approx(hypot(0.1, 100 * slope_error_s / 4e-3))


def test_compiled_lanes_take_longer_in_steps_of_their_slots():
    """256 slots up to 222 cached tokens, 384 up to 350, then 512 and 768: half of that again as it was."""
    profile = one_lane(times((0, 222, 223, 258), (1e-3, 1e-3, 1.2e-3, 1.2e-3)))
    layer = with_longer_tables(profile, ["openvino:CPU"], Tokens.of(record_of(601, 1))).lanes[0].layer
    found = {context: layer.at(1, context) for context in (222, 223, 350, 351, 478, 479, 600)}
    assert found == pytest.approx(
        {222: 1e-3, 223: 1.2e-3, 350: 1.2e-3, 351: 1.4e-3, 478: 1.4e-3, 479: 1.8e-3, 600: 1.8e-3}
    )


def test_shorter_texts_take_less_and_never_less_than_nothing():
    table = times((100, 200), (1e-3, 3e-3), (2e-3, 3e-3), (3e-3, 2e-3))
    layer = with_longer_tables(one_lane(table, "cpu0"), ["cpu0"], Tokens.of(record_of(1, 1))).lanes[0].layer
    assert [layer.at(rows, 0) for rows in (1, 2, 3)] == pytest.approx([0.0, 1e-3, 3e-3])


def test_where_no_time_differs_by_the_length_other_lengths_are_refused():
    """Both ends are in 256 slots: what 384 take is not known, and all that is in 256 is."""
    profile = one_lane(times((30, 100), (1e-3, 1e-3), error=0.05))
    beyond, within = record_of(220, 60), record_of(150, 60)
    assert reaching(profile, beyond, ["openvino:CPU"]) == (profile, None)
    said = r"long.npz: .* p.yaml was calibrated for 30 to 100: measured times .*`mirrorsd calibrate` .*-tokens 60$"
    with pytest.raises(OutOfRangeError, match=said):
        require_reach(profile, beyond, ["openvino:CPU"], sides=("p.yaml", "long.npz"))
    longer, warning = reaching(profile, within, ["openvino:CPU"])
    assert longer.lanes[0].layer.at(1, 200) == 1e-3
    assert "up to 0 % of a layer's time" in warning


@pytest.mark.parametrize(("first", "is_told"), [(0, True), (300, True), (399, False)])
def test_a_slope_of_noise_is_refused_as_its_interval_would_not_hold_the_truth(first, is_told):
    """Ends that are up to 1 % off: between 399 and 400 cached tokens that made 45 ms of 2.9 at 1,900."""
    contexts, off, told = (first, 400), (-0.01, -0.005, 0.0, 0.005, 0.01), record_of(1901, 1)
    for noise in product(off, off):
        line = tuple((1e-3 + 1e-6 * at) * (1 + more) for at, more in zip(contexts, noise, strict=True))
        profile = one_lane(times(contexts, line, error=0.01), "cpu0")
        found = with_longer_tables(profile, ["cpu0"], Tokens.of(told))
        assert (found != profile) == is_told
        if is_told:
            layer = found.lanes[0].layer
            assert abs(log(layer.at(1, 1900) / 2.9e-3)) < layer.relative_error
        else:
            with pytest.raises(OutOfRangeError, match="measured times differ too little"):
                require_reach(found, told, ["cpu0"])


@pytest.mark.parametrize("quick", [True, False])
def test_a_calibration_for_one_position_times_the_way_there_and_tells_what_is_far_beyond(quick):
    noise, engine = random.Random(1), fake_machine.machine()
    engine.trouble = lambda _lane, _measurement, _times_before: noise.gauss(1, 0.01)
    asked = fake_machine.task(contexts=(399, 400), quick=quick, time_s=60.0)
    profile = fake_machine.calibrate(engine, asked, clock=engine.clock)
    known = one_lane(profile.lane("cpu0").layer, "cpu0")
    layer = with_longer_tables(known, ["cpu0"], Tokens.of(record_of(1901, 1))).lanes[0].layer
    error = abs(log(layer.at(1, 1900) / engine.laws["cpu0"].layer_s(1, 1900)))
    assert error < layer.relative_error < 0.5


def test_one_context_serves_for_all():
    profile, record = narrowed(machine(), target=(64,), draft=(64,)), record_of(5000, 60)
    assert calibrated_contexts(profile, LANES) is None
    require_reach(profile, record, LANES)


def test_intervals_hold_what_was_measured_beyond_the_anchors():
    """Of committed calibrations that time a layer at three contexts: the last one, told by the two before."""
    files = [
        *Path("benchmarks/results/held-out").glob("*.yaml"),
        *Path("benchmarks/results/demos").glob("*/profile.yaml"),
    ]
    held = []
    for profile in map(load_profile, files):
        for lane in profile.lanes:
            layer, last = lane.layer, lane.layer.contexts[-1]
            kept = layer.contexts.index(lane.anchor.context) + 1 if lane.anchor.context in layer.contexts else 0
            if not kept:
                continue
            cut = {"contexts": layer.contexts[:kept], "seconds": tuple(line[:kept] for line in layer.seconds)}
            told = one_lane(layer.model_copy(update=cut), lane.name)
            tokens = Tokens(np.array([last]), np.array([1]))
            found = with_longer_tables(told, [lane.name], tokens).lanes[0].layer
            held.append(abs(log(found.at(1, last) / layer.at(1, last))) < found.relative_error)
    assert len(held) >= 18
    assert sum(held) >= 0.85 * len(held)


def test_what_was_measured_says_for_what_contexts_and_that_it_has_not_seen_the_texts():
    profile = machine()
    anchored = profile.lanes[0].model_copy(update={"anchor": Anchor(context=64, seconds=0.03)})
    measured = profile.model_copy(update={"lanes": (anchored, *profile.lanes[1:])})
    assert reach_in_words(measured, record_of(200, 60), LANES) == (
        "The profile was calibrated on made-up text with 0 to 2,048 cached tokens, not on these prompts "
        "and answers, which have 199 to 258 cached tokens."
    )
    assert reach_in_words(profile, record_of(200, 60), LANES) is None, "nobody measured it"
