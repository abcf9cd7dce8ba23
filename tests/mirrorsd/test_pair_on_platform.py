"""A pair of models on a calibrated machine, on described ones, and with devices added."""

from pathlib import Path

import numpy as np
import pytest

from costs.cost_model import cost_of
from costs.prices import pass_s
from costs.round_plan import DRAFT_READS, DRAFT_STEP
from decoding.errors import ConfigError, ModelError, PlanError, ProfileError
from decoding.schedule import Schedule
from hwprofiles.overrides import with_devices
from hwprofiles.platform import load_platform
from hwprofiles.profile import load_profile
from mirrorsd.pair_on_platform import PlannedMachine, plan_pair, question_of
from planner.plan_engines import engines_of
from planner.platform_plan.advice import advice
from planner.platform_plan.device_pairs import lane_pairs
from runtime.drafters.registry import SHIPPED_FOLDER
from sim.acceptance.assumed import Bernoulli
from sim.derived.calibrated_lanes import CARRIED, calibrated_platform
from sim.evaluator import predict

PROFILE = load_profile(Path(__file__).parents[2] / "benchmarks" / "results" / "demos" / "1" / "profile.yaml")


PAIR = "smollm2-135m-instruct", "smollm2-135m-draft4"


LANES = {lane.name for lane in PROFILE.lanes}


def planned(add=(), pair=PAIR, rate=0.7, **settings):
    return plan_pair(*pair, PlannedMachine(PROFILE, add), acceptance=Bernoulli(rate), lengths=(64, 32), **settings)


@pytest.fixture(scope="module")
def alone():
    return planned()


@pytest.fixture(scope="module")
def with_a_card():
    return planned(("rtx4090",))


@pytest.mark.parametrize("field", ["bf16_flops", "memory_bytes_per_s"])
def test_an_accelerator_of_which_too_little_is_described_is_refused_and_nothing_answers_in_its_place(field, tmp_path):
    given = {"bf16_flops": "60 TFLOPS", "memory_bytes_per_s": "256 GB/s"}
    (other,) = {*given} - {field}
    path = tmp_path / "mine.yaml"
    path.write_text(f"{{name: My card, kind: gpu, memory_bytes: 8 GB, {other}: {given[other]}}}")
    told = rf"mine\.yaml: \w+ \(My card\) gives no {field}, .*{field}: \d+ "
    for machine in (str(path), PlannedMachine("radeon-890m", (str(path),)), PlannedMachine("rtx4090", (str(path),))):
        with pytest.raises(ProfileError, match=told):
            question_of("qwen3-4b", "qwen3-0.6b", machine)
    known = question_of("qwen3-4b", "qwen3-0.6b", str(path), changes={f"gpu.{field}": given[field]})
    assert getattr(known.platform.device("gpu"), field) is not None
    shared = PlannedMachine("radeon-890m", (f"{path}@unified-memory",))
    if field == "memory_bytes_per_s":
        assert "mine" in question_of("qwen3-4b", "qwen3-0.6b", shared).platform.devices, "its pool's"


def test_a_lookup_needs_no_calibration_of_a_draft():
    found = planned(pair=("smollm2-135m-instruct", "prompt-lookup"))
    assert found.question.calibrated.in_words is None


@pytest.mark.parametrize("name", ["smollm2-135m-streams", str(SHIPPED_FOLDER / "smollm2-135m-eagle3")])
def test_a_trained_head_that_is_given_as_a_draft_is_told_as_that(name):
    with pytest.raises(ModelError, match=rf"^{name}: holds mirrorsd_\w+, which has no shape .*A draft is a model, or"):
        plan_pair("smollm2-135m", name, "lunar-lake")


def test_a_shipped_head_of_another_target_is_refused():
    with pytest.raises(PlanError, match="was trained for smollm2-135m-instruct, not for Qwen3-8B"):
        plan_pair("qwen3-8b", "smollm2-135m-eagle3", "lunar-lake")
    own = (plan_pair("smollm2-135m-instruct", one, "lunar-lake") for one in ("smollm2-135m-eagle3", "eagle3"))
    assert len({plan.drafting.tpot_s for plan in own}) == 1


def test_a_calibration_with_a_draft_in_a_format_of_its_own_is_of_that(alone):
    own = PROFILE.model_copy(update={"draft_dtype": "int8"})
    plan = plan_pair(*PAIR, own, acceptance=Bernoulli(0.7), lengths=(64, 32))
    assert (plan.question.target.weights, plan.question.draft.weights) == ("bf16", "int8")
    assert plan.question.calibrated.in_words is None
    assert plan.drafting.tpot_s == pytest.approx(alone.drafting.tpot_s)
    other = plan_pair(*PAIR, own, acceptance=Bernoulli(0.7), lengths=(64, 32), weights=(None, "bf16"))
    told = f"{PROFILE.target} in {PROFILE.dtype} and {PROFILE.drafter} in int8, and not with this draft"
    assert told in other.question.calibrated.in_words


def test_what_was_measured_costs_what_its_profile_predicts(alone, with_a_card):
    found = {}
    for plan in (alone, with_a_card):
        measured = [one for one in plan.ranking if {*one.pair[:2]} <= LANES]
        for one in measured[:: max(1, len(measured) // 20)]:
            own = predict(one.schedule, PROFILE, plan.question.record)
            assert (own.tpot_s, own.relative_error) == (one.tpot_s, one.prediction.relative_error), one.schedule
            found[one.schedule.method] = one
    assert set(found) == {"autoregressive", "speculative", "mirror"}


def test_a_card_makes_nothing_slower_and_without_it_the_answer_is_the_same_to_the_bit(alone, with_a_card):
    assert with_a_card.ranking[0].tpot_s <= alone.ranking[0].tpot_s
    assert with_a_card.plain.pair.target == "rtx4090"
    again = planned()
    assert [(one.schedule, one.tpot_s, one.prediction.relative_error) for one in again.ranking] == [
        (one.schedule, one.tpot_s, one.prediction.relative_error) for one in alone.ranking
    ]


def test_published_gains_are_named_beside_a_gain_on_a_card_that_was_added_and_not_of_lanes_timed_here():
    plans = [planned(added, rate=0.9) for added in ((), ("rtx4090",))]
    told = [any("published speed-ups" in one for one in advice(plan).warnings) for plan in plans]
    carried = ["what engines make of a gain" in plan.drafting.prediction.errors for plan in plans]
    assert told == carried == [False, True]


def test_lanes_of_the_calibration_run_whatever_was_planned_for_them_and_an_engines_do_not(alone, with_a_card):
    at_once = next(one for one in alone.speculation if one.schedule.traits.overlaps)
    assert [one.engine for one in engines_of(alone, at_once)] == ["mirrorsd"]
    bases = [advice(plan).basis for plan in (alone, with_a_card)]
    assert bases[0] == "predicted from the calibration and the given acceptance"
    assert bases[1] == "predicted from the calibration, data sheets of added devices and the given acceptance"
    imported = PROFILE.model_copy(update={"host": {"engine": "llama.cpp"}})
    assert calibrated_platform(imported).lanes == {}


def test_with_other_models_lanes_are_as_fast_as_they_were_and_less_sure():
    plan = planned(pair=("smollm2-360m", "smollm2-135m"))
    assert "and not with these models" in plan.question.calibrated.in_words
    assert plan.plain.prediction.relative_error > (CARRIED[1] - CARRIED[0]) / 2
    reading = next(one for one in plan.assumptions if one.field == "openvino:CPU@0.memory_cap_bytes_per_s")
    lane = PROFILE.lane("openvino:CPU@0")
    one_row_s = pass_s(cost_of(lane), 30, 1, lane.layer.contexts[0])
    num_bytes = 30 * lane.layer.bytes_per_call + lane.lm_head.bytes_per_call
    assert reading.value == pytest.approx(num_bytes / one_row_s)
    assert (reading.low, reading.high) == pytest.approx([share * reading.value for share in CARRIED])


def test_with_another_draft_the_target_costs_what_was_measured(alone):
    plan = planned(pair=(PAIR[0], "smollm2-135m"), weights=("bf16", "int4"))
    plain = {one.pair.target: one.tpot_s for one in plan.ranking if not one.schedule.draft_lane}
    assert plain == {one.pair.target: one.tpot_s for one in alone.ranking if not one.schedule.draft_lane}
    assert "and not with this draft" in plan.question.calibrated.in_words


def test_another_draft_of_an_engine_reads_verified_rows_again_and_pays_the_engines_host_as_on_any_card():
    imported = PROFILE.model_copy(update={"host": {"engine": "llama.cpp"}})
    ours, theirs = (
        plan_pair(PAIR[0], "smollm2-135m", one, acceptance=Bernoulli(0.7), lengths=(64, 32))
        for one in (PROFILE, imported)
    )
    lane, context = ours.plain.pair.target, np.array([64.0])
    own, charged = (plan.costs[lane] for plan in (ours, theirs))
    assert own.missing(DRAFT_READS, 3, context) is not None
    assert charged.missing(DRAFT_READS, 3, context) is None
    step_s = charged.seconds(DRAFT_STEP, 1, context) - own.seconds(DRAFT_STEP, 1, context)
    assert step_s == pytest.approx(5e-4)
    assert ours.plain.tpot_s == theirs.plain.tpot_s


def test_a_card_beside_an_imported_lane_runs_the_engine_of_that_lane():
    def engine_of_card(profile, engine=None):
        asked = question_of(*PAIR, PlannedMachine(profile, ["rtx4090"], engine), lengths=(64, 32))
        return asked.platform.device("rtx4090").engine

    imported = PROFILE.model_copy(update={"host": {"engine": "sglang"}})
    assert engine_of_card(imported) == engine_of_card(imported, "vllm") == "sglang"
    assert engine_of_card(PROFILE) is None
    assert engine_of_card(PROFILE, "vllm") == "vllm"
    with pytest.raises(ConfigError, match=r"--engine llama.cpp: the profile is of sglang"):
        engine_of_card(imported, "llama.cpp")


def test_in_another_form_of_weights_nothing_was_measured():
    assert not planned(weights=("int4", None)).question.calibrated.has_target


def test_lanes_on_the_same_cores_do_not_work_at_once(alone):
    pairs = {(pair.target, pair.draft) for pair in lane_pairs(calibrated_platform(PROFILE), sorted(LANES))}
    cores = {lane.name: set(lane.cores) for lane in PROFILE.lanes}
    assert {(one, other) for one, other in pairs if one != other} == {
        (one, other) for one in LANES for other in LANES if not cores[one] & cores[other]
    }
    assert {one.pair[:2] for one in alone.ranking} <= pairs


def test_what_was_measured_is_no_what_if(with_a_card):
    with pytest.raises(ConfigError, match="costs of the models on openvino:CPU were measured"):
        planned(changes={"openvino:CPU.memory_cap_bytes_per_s": "+10%"})
    slower = planned(("rtx4090",), changes={"rtx4090.memory_efficiency": 0.5})
    assert slower.plain.tpot_s > with_a_card.plain.tpot_s


def test_devices_join_the_host_or_those_that_have_such_a_link():
    cards = with_devices(load_platform("rtx4090+cpu"), ["rtx4090", "l40s@pcie-5-x16"])
    assert list(cards.devices) == ["gpu", "cpu", "rtx4090", "l40s"]
    assert cards.path("rtx4090", "gpu") == ("rtx4090", "cpu", "gpu")
    assert cards.link("cpu", "l40s").sheet == "pcie-5-x16"
    server = with_devices(load_platform("h100x2"), ["h100-sxm@nvlink-4", "h100-sxm@nvlink-4"])
    assert server.path("h100-sxm", "h100-sxm-2") == ("h100-sxm", "h100-sxm-2")


def test_a_device_without_a_copy_shares_the_memory_of_the_host():
    chip = with_devices(calibrated_platform(PROFILE), ["panther-lake-npu5"])
    memory, pool = chip.pool_of("panther-lake-npu5")
    assert memory == chip.pool_of("openvino:CPU")[0]
    assert set(pool.devices) == {*LANES, "panther-lake-npu5"}
    assert pool.bytes_per_s.value == 1.536e11, "cores alone do not read all that the memory delivers"
    lone = with_devices(load_platform("rtx4090+cpu"), ["panther-lake-npu5@unified-memory"])
    assert set(lone.pool_of("cpu")[1].devices) == {"cpu", "panther-lake-npu5"}


def test_more_devices_are_named_as_platforms_are_and_cost_what_they_cost():
    before = load_platform("strix-halo")
    after = with_devices(before, ["2x RTX 4090"])
    assert list(after.devices)[-2:] == ["rtx4090", "rtx4090-2"]
    card = after.device("rtx4090")
    assert (card.sheet, card.memory_bytes.value) == ("rtx4090", 2.4e10)
    assert after.usd_per_hour == pytest.approx(before.usd_per_hour + 2 * card.usd_per_hour)
    assert with_devices(before, ["l4"]).usd_per_hour is None, "nobody says what that card costs"


def test_a_card_that_is_added_changes_no_default_of_weights():
    asked = question_of("llama-3.1-70b", "llama-3.2-1b", PlannedMachine("strix-halo", "rtx3090"))
    assert asked.target.weights == "int4", "so that it is compared with the machine without it"


@pytest.mark.parametrize(
    ("before", "additions", "groups"),
    [
        ("rtx3090", ["rtx3090"], {"gpus": ("gpu", "rtx3090")}),
        ("rtx3090", ["2xrtx3090"], {"gpus": ("gpu", "rtx3090", "rtx3090-2")}),
        ("2xrtx3090", ["rtx3090"], {"gpus": ("gpu0", "gpu1"), "gpus-2": ("gpu0", "gpu1", "rtx3090")}),
        ("rtx4090", ["rtx3090", "rtx3090"], {"gpus": ("rtx3090", "rtx3090-2")}),
        ("rtx3090", ["rtx3060"], {}),
        ("rtx4090", ["RTX 4090 48GB"], {}),
        ("RTX 4090 48GB", ["RTX 4090 48GB"], {"gpus": ("gpu", "rtx4090")}),
        ("rtx3090", ["rtx 3090 24gb"], {"gpus": ("gpu", "rtx3090")}),
        ("RTX 3090 24GB", ["rtx3090"], {"gpus": ("gpu", "rtx3090")}),
        ("rtx3090", ["rtx3090@thunderbolt-4"], {}),
    ],
)
def test_equal_cards_on_equal_links_hold_one_model_together(before, additions, groups):
    assert with_devices(load_platform(before), additions).groups == groups


def test_a_second_card_that_is_added_is_worth_what_a_machine_with_two_is():
    plans = [
        plan_pair("qwen3-32b", "qwen3-0.6b", machine, weights=("q8_0", "q8_0"), lengths=(64, 16))
        for machine in ("2xrtx3090", PlannedMachine("rtx3090", ["rtx3090"]))
    ]
    assert [plan.plain.pair.target for plan in plans] == ["gpus", "gpus"]
    assert plans[0].plain.tpot_s == pytest.approx(plans[1].plain.tpot_s)
    assert plans[0].recommended.tpot_s == pytest.approx(plans[1].recommended.tpot_s)


@pytest.mark.parametrize(
    ("addition", "told"), [("rtx5099", "no device is called 'rtx5099'"), ("rtx4090@rope", "no link is called 'rope'")]
)
def test_what_does_not_ship_cannot_be_added(addition, told):
    with pytest.raises(ProfileError, match=told):
        with_devices(load_platform("h200"), [addition])


def test_a_profile_of_no_machine_is_refused_in_words():
    broken = PROFILE.model_copy(update={"lanes": (PROFILE.lanes[0].model_copy(update={"name": "a lane with spaces"}),)})
    with pytest.raises(ProfileError, match="describes no machine"):
        calibrated_platform(broken.model_copy(update={"links": (), "contention": ()}))


def test_schedules_of_the_answer_name_lanes_and_drafters_of_the_calibration(alone):
    assert isinstance(alone.drafting.schedule, Schedule)
    assert alone.drafting.schedule.drafter == PROFILE.drafter
    assert {alone.drafting.schedule.target_lane, alone.drafting.schedule.draft_lane} <= LANES


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"lengths": (0, 10)}, "prompt_length: Input should be greater than or equal to 1, found 0"),
        ({"lengths": (None, 0)}, "num_tokens: Input should be greater than or equal to 1, found 0"),
        ({"lengths": (10.5, None)}, "prompt_length: Input should be a valid integer, found 10.5"),
        ({"acceptance": 0.7}, r"acceptance is 0.7: it is an AcceptanceRecord, or assumed, as Bernoulli\(0.8\) is"),
        ({"acceptance": "record.npz"}, "acceptance is 'record.npz': "),
        ({"acceptance": Bernoulli(0.7).record, "lengths": (0, None)}, "a record has texts of its own"),
    ],
)
def test_what_is_no_length_and_no_acceptance_is_refused(asked, told):
    with pytest.raises(ConfigError, match=told):
        question_of("qwen3-14b", "qwen3-0.6b", "lunar-lake", **asked)


def test_one_format_is_the_targets_and_one_device_is_added():
    question = question_of("qwen3-14b", "prompt-lookup", PlannedMachine("lunar-lake", add="rtx4090"), weights="q8_0")
    assert question.target.weights == "q8_0"
    assert "rtx4090" in question.platform.devices


def test_where_no_lengths_are_given_texts_are_as_long_as_was_calibrated():
    narrow = {"contexts": (35, 100), "seconds": ((1e-3, 2e-3), (2e-3, 3e-3)), "rows": (1, 9), "relative_error": 0.1}
    lane = PROFILE.lane("openvino:CPU")
    lane = lane.model_copy(update={"layer": lane.layer.model_copy(update=narrow)})
    short = PROFILE.model_copy(update={"lanes": (lane,), "links": (), "contention": ()})
    record = plan_pair(*PAIR, short).question.record
    assert record.contexts.start >= 35
    assert record.contexts.stop <= 101
    assert plan_pair(*PAIR, PROFILE).question.record.contexts == range(511, 639)


CPU_OF_A_USER = "{name: My CPU, kind: cpu, memory_bytes_per_s: 60 GB/s, memory_bytes: 32 GB}"


def test_a_cpu_that_is_added_takes_the_place_of_the_one_that_is_assumed(tmp_path):
    (path := tmp_path / "mine.yaml").write_text(CPU_OF_A_USER)
    for card, cpu in (("rtx4070", "ryzen-5800x"), ("2xrtx3090", "ryzen-5800x"), ("h100x2", "epyc-9654")):
        before, after = load_platform(card), with_devices(load_platform(card), [cpu])
        assert after.devices == dict(before.devices) | {"cpu": after.device("cpu")}
        assert (after.device("cpu").sheet, after.links, after.groups) == (cpu, before.links, before.groups)
    assert with_devices(load_platform("rtx4070"), [str(path)]).device("cpu").memory_bytes_per_s.value == 60e9
    owner, buyer = (
        plan_pair("qwen3-8b", "qwen3-0.6b", PlannedMachine(one, other), weights="bf16", lengths=(64, 16))
        for one, other in (("rtx4070", "ryzen-5800x"), ("ryzen-5800x", "rtx4070"))
    )
    assert owner.recommended.tpot_s == pytest.approx(buyer.recommended.tpot_s)


def test_a_machine_that_has_its_cpu_gets_no_second_one_unless_a_link_joins_it(tmp_path):
    (path := tmp_path / "mine.yaml").write_text("{name: My CPU, kind: cpu}")
    for machine in ("ryzen-5800x", "strix-halo", "m4-max"):
        with pytest.raises(ConfigError, match=r"EPYC 9654 .* cannot be added: this machine has its CPU \(.*CPU|Ryzen"):
            with_devices(load_platform(machine), ["epyc-9654"])
    assert "epyc-9654" in with_devices(load_platform("ryzen-5800x"), ["epyc-9654@infiniband-400g"]).devices
    with pytest.raises(ProfileError, match="My CPU gives no memory_bytes_per_s"):
        with_devices(load_platform("rtx4070"), [str(path)])


def test_a_cpu_that_is_assumed_is_told_with_its_memory_and_links_and_ones_own_is_not():
    def told(machine):
        plan = plan_pair("qwen3-4b", "qwen3-0.6b", machine, weights="q4_k_m", lengths=(64, 16))
        return [one for one in advice(plan).warnings if one.startswith("Assumed: A")]

    (said,) = told("2xrtx4060")
    assert "two channels of DDR5-5600, 64 GB, joined to gpu0, gpu1 by PCI Express 4.0 x8. --add takes yours" in said
    assert not told(PlannedMachine("2xrtx4060", "ryzen-5800x"))
    assert not told("strix-halo")
