from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from costs.contention import PairContention
from costs.cost_model import GroupCost, Part, all_gather_s, all_reduce_s
from costs.lane_messages import route_of
from costs.round_plan import DRAFT_READS, DRAFT_STEP, LAYER, LM_HEAD
from decoding.errors import ProfileError
from decoding.schedule import Schedule
from hwprofiles.bounds import LONGEST_S
from hwprofiles.model_shape import model_shape
from hwprofiles.models.head_shapes import HEADS, LOOKUP, head_shape
from hwprofiles.overrides import with_overrides
from hwprofiles.platform import Platform, load_platform
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts
from sim.derived.derived_contention import POOL_EFFICIENCY
from sim.derived.derived_profile import Demand, derived_profile, device_group, lane_cost, speed_on
from sim.derived.roofline import StoredModel
from sim.evaluator import predict

DATASHEET = {"status": "datasheet", "source": "made up"}


def number(value):
    return {"value": value, **DATASHEET}


def platform(**changes):
    """Two equal GPUs joined by a link, and an NPU on the first one's memory."""
    gpu = {"name": "a GPU", "kind": "gpu", "bf16_flops": number(1e14), "memory_efficiency": number(0.8)}
    npu = {"name": "an NPU", "kind": "npu", "bf16_flops": number(1e13), "memory_efficiency": number(0.4)}
    npu |= {"dispatch_s": number(1e-9), "dispatch_of": "graph"}
    data = {
        "name": "made up",
        "devices": {"gpu0": gpu, "npu": npu, "gpu1": gpu | {"memory_bytes_per_s": number(2e11)}},
        "memory_pools": {"memory": {"devices": ["gpu0", "npu"], "bytes_per_s": number(2e11)}},
        "links": [
            {"between": ["gpu0", "gpu1"], "latency_s": number(1e-5), "bytes_per_s": number(1e10)},
            {"between": ["gpu0", "npu"], "latency_s": number(5e-5)},
        ],
        "groups": {"gpus": ["gpu0", "gpu1"]},
    }
    return Platform.model_validate(data | changes)


def demand(lanes, *, target="qwen3-8b"):
    return Demand(
        target=StoredModel(shape=model_shape(target), weights="int4"),
        draft=StoredModel(shape=model_shape("qwen3-0.6b"), weights="int4"),
        lanes=lanes,
        exits=(18,),
    )


ALL = ["gpu0", "npu", "gpu1", "gpus"]
TEXTS = Texts(num_texts=2, num_tokens=24, prompt_length=64)
ACCEPTANCE = Bernoulli(0.6, texts=TEXTS, alternative_rates=(0.2, 0.3), exit_coverage={20: (0.3, 0.4)})


def test_lanes_of_one_device_never_work_at_the_same_time():
    pairs = derived_profile(platform(), demand(ALL)).profile.split_pairs()
    assert {("gpu0", "npu"), ("npu", "gpus"), ("gpus", "npu")} <= set(pairs)
    assert not {("gpu0", "gpus"), ("gpus", "gpu0"), ("gpu1", "gpus")} & set(pairs)


def test_a_lane_says_what_its_devices_are():
    lanes = derived_profile(platform(), demand(ALL)).profile.lanes
    assert {lane.name: lane.kind for lane in lanes} == {"gpu0": "gpu", "npu": "npu", "gpu1": "gpu", "gpus": "gpu"}


@pytest.mark.parametrize("head", HEADS)
def test_lanes_never_work_at_once_where_a_head_drafts_on_the_targets_lane(head):
    asked = demand(ALL)
    draft = StoredModel(shape=head_shape(head, asked.target.shape), weights="int4", head=head)
    profile = derived_profile(platform(), replace(asked, draft=draft)).profile
    assert (profile.links, profile.contention) == ((), ())


def test_a_tensor_parallel_layer_waits_for_two_all_reduces_and_a_head_for_one_gather():
    asked = demand(["gpus"])
    found = derived_profile(platform(), asked)
    cost = GroupCost(found.costs["gpus"], found.profile.lane("gpus").group)
    link = {"latency_s": 1e-5, "bytes_per_s": 1e10}
    states, candidates = 3 * 4096 * 2, 3 * 2 * 8
    reduce_s = all_reduce_s(states, 2, **link)
    gather_s = all_gather_s(candidates, 2, **link)
    for kind, waits_s in (("layer", 2 * reduce_s), ("lm_head", gather_s), ("draft_step", 56 * reduce_s + gather_s)):
        share_s = found.costs["gpus"].one(Part(kind), 3, 0)
        assert cost.seconds(Part(kind), 3, np.zeros(1))[0] == pytest.approx(share_s + waits_s, abs=1e-9)


@pytest.mark.parametrize(
    ("head", "part", "num_reduces", "num_gathers"),
    [("dflash", "heads", 10, 1), ("medusa", "heads", 4, 4), ("eagle3", "draft_step", 2, 1), (LOOKUP, "heads", 0, 0)],
)
def test_heads_on_a_group_wait_for_its_members_as_draft_models_do(head, part, num_reduces, num_gathers):
    """A block of five layers, four Medusa heads of a matrix and an lm_head each, a layer, and no model at all."""
    asked = demand(["gpus"])
    draft = StoredModel(shape=head_shape(head, asked.target.shape), weights="int4", head=head)
    found = derived_profile(platform(), replace(asked, draft=draft))
    cost = GroupCost(found.costs["gpus"], found.profile.lane("gpus").group)
    link = {"latency_s": 1e-5, "bytes_per_s": 1e10}
    waits_s = num_reduces * all_reduce_s(3 * 4096 * 2, 2, **link) + num_gathers * all_gather_s(3 * 2 * 8, 2, **link)
    share_s = found.costs["gpus"].one(Part(part), 3, 0)
    assert cost.seconds(Part(part), 3, np.zeros(1))[0] == pytest.approx(share_s + waits_s, abs=1e-9)


def test_parallel_tracks_meet_after_every_segment_only():
    tracks = StoredModel(shape=model_shape("mirror-track-0.6b"), weights="bf16")
    group = device_group(platform(), replace(demand(["gpus"]), draft=tracks), "gpus")
    assert group.all_reduces["draft_step"] == 2
    assert device_group(platform(), demand(["gpu0"]), "gpu0") is None


def test_two_streams_cost_each_other_what_the_sheet_says_and_at_least_fair_shares_of_its_memory():
    lanes = ("gpu0", "gpu0#2", "gpu1")
    found = derived_profile(load_platform("h100x2"), demand(list(lanes)))
    streams = found.profile.contention_of("gpu0", "gpu0#2")
    assert min(streams.slowdown) >= 1.2
    assert streams.relative_error > 0.08
    assert "two streams" in streams.source
    assert found.costs["gpu0#2"].one(Part("layer"), 1, 0) == found.costs["gpu0"].one(Part("layer"), 1, 0)
    assert found.profile.link("gpu0", "gpu0#2").latency_s == 0
    assert "gpu0.two_streams_slowdown" in {one.field for one in found.assumptions}
    assert found.profile.contention_of("gpu1", "gpu0#2") is None, "they share nothing"


def test_what_a_sheet_or_a_platform_does_not_give_is_named():
    silent = with_overrides(load_platform("h100x2"), {"gpu0.two_streams_slowdown": "none"})
    with pytest.raises(ProfileError, match="'gpu0' gives no two_streams_slowdown"):
        derived_profile(silent, demand(["gpu0", "gpu0#2"]))
    with pytest.raises(ProfileError, match="no memory pool"):
        derived_profile(platform(memory_pools={}), demand(["gpu0"]))


def test_links_are_the_platforms_own_ways():
    profile = derived_profile(platform(), demand(["gpu1", "npu"])).profile
    link = profile.link("gpu1", "npu")
    assert link.latency_s == pytest.approx(6e-5)
    assert 1e6 / link.bytes_per_s == pytest.approx(1e-4)
    assert "gpu1 - gpu0 - npu" in link.source
    assert profile.links == (link,), "the way back is the same"


def test_a_way_back_of_its_own_is_priced_and_assumed_as_one_and_there_has_to_be_one():
    ways = [
        {"between": ["gpu0", "gpu1"], "one_way": True, "latency_s": number(5e-6), "bytes_per_s": number(25e9)},
        {"between": ["gpu1", "gpu0"], "one_way": True, "latency_s": number(2e-3), "bytes_per_s": number(1e6)},
    ]
    found = derived_profile(platform(links=ways), demand(["gpu0", "gpu1"]))
    for one, other in (("gpu0", "gpu1"), ("gpu1", "gpu0")):
        [hop] = route_of(found.profile, one, other)
        assert hop.latency_s + 24 / hop.bytes_per_s == pytest.approx(platform(links=ways).transfer_s(one, other, 24))
    assert {"gpu0-gpu1.latency_s", "gpu1-gpu0.latency_s"} <= {one.field for one in found.assumptions}
    with pytest.raises(ProfileError, match="no link leads from gpu1 to gpu0"):
        derived_profile(platform(links=ways[:1]), demand(["gpu0", "gpu1"]))


def test_the_simulator_works_out_the_shares_of_lanes_on_one_memory_and_of_no_others():
    found = derived_profile(platform(), demand(["gpu0", "npu", "gpu1"])).profile
    assert found.contention_of("gpu1", "npu") is None
    for pair in (("gpu0", "npu"), ("npu", "gpu0")):
        assert found.pool_bytes_per_s(*pair) == pytest.approx(POOL_EFFICIENCY.value * 2e11)
        assert found.slowdown(*pair) == (1.0, 1.0)
        assert found.contention_of(*pair).relative_error == POOL_EFFICIENCY.relative_error
    slowdown = PairContention.of(found, "gpu0", "npu").slowdown(np.array([160e9]), np.array([80e9]))
    assert [float(one[0]) for one in slowdown] == pytest.approx([160 / 100, 1.0])
    assert found.pool_bytes_per_s("gpu1", "npu") is None


def test_a_group_beside_a_lane_on_its_memory_needs_no_more_positions_than_a_model_has():
    asked = demand(["gpus", "npu"])
    short = asked.draft.shape.model_copy(update={"max_position": 512})
    found = derived_profile(platform(), replace(asked, draft=replace(asked.draft, shape=short))).profile
    assert found.slowdown("gpus", "npu") == pytest.approx(
        derived_profile(platform(), asked).profile.slowdown("gpus", "npu"), rel=1e-3
    )


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_a_mesh_has_a_link_for_every_pair_and_collectives_those_of_a_device_together(count):
    """AMD gives 448 GB/s for the seven links of an MI300X among eight."""
    machine = load_platform(f"{count}xmi300x")
    assert machine.link("gpu0", "gpu1").bytes_per_s.value == 64e9
    assert device_group(machine, demand([]), "gpus").bytes_per_s == pytest.approx(min(count - 1, 7) * 64e9)


def test_bridges_give_two_cards_300_gb_a_second_each_way():
    assert device_group(load_platform("2x h100 nvl"), demand([]), "gpus").bytes_per_s == pytest.approx(300e9)


def test_every_number_names_its_source_and_what_nobody_published_is_called_guessed():
    found = derived_profile(platform(), demand(ALL))
    assert all(one.source for one in found.assumptions)
    fields = {one.field: one for one in found.assumptions}
    assert fields["gpu0.bf16_flops"].status == "datasheet"
    assert fields["gpu0.dispatch_s"].status == "guessed"
    assert {"gpu0-gpu1.latency_s", "gpu0.growth_per_row", "memory_pool.efficiency"} <= set(fields)


def test_collectives_wait_for_each_other_longer_than_a_message_takes_where_that_was_measured():
    waiting = load_platform("h100x4+1")
    free = with_overrides(
        waiting, {f"gpu{one}-gpu{other}.collective_latency_s": "none" for one, other in combinations(range(5), 2)}
    )
    assert device_group(waiting, demand([]), "target").latency_s == pytest.approx(5e-6)
    assert device_group(free, demand([]), "target").latency_s == pytest.approx(1.5e-6)


def test_a_link_that_is_crossed_both_ways_counts_once_and_under_the_name_that_settings_give_it():
    line = load_platform("lunar-lake").model_dump(exclude_none=True)
    line["links"] = [{"between": list(ends), "sheet": "unified-memory"} for ends in (("npu", "gpu"), ("cpu", "npu"))]
    machine = Platform.model_validate(line)
    used = derived_profile(machine, demand(["gpu", "cpu", "npu"])).assumptions
    names = [one.field for one in used if one.field.endswith(".latency_s")]
    assert names == ["npu-gpu.latency_s", "cpu-npu.latency_s"]
    assert all(with_overrides(machine, {name: 1e-3}) for name in names)


@pytest.mark.parametrize("change", ["+10%", "-50%", "1e11"])
def test_a_bandwidth_set_for_one_device_moves_that_device_alone_and_in_proportion(change):
    before = load_platform("lunar-lake")
    after = with_overrides(before, {"npu.memory_bytes_per_s": change})
    share = after.device("npu").memory_bytes_per_s.value / before.device("npu").memory_bytes_per_s.value
    assert share != 1
    speeds = {name: (speed_on(before, name).bytes_per_s, speed_on(after, name).bytes_per_s) for name in ("gpu", "npu")}
    assert speeds["gpu"][1] == speeds["gpu"][0]
    assert speeds["npu"][1] == pytest.approx(share * speeds["npu"][0], rel=1e-12)

    wide = with_overrides(before, {"gpu.memory_bytes_per_s": 1e12})
    assert speed_on(wide, "gpu").bytes_per_s == wide.memory_pools["memory"].bytes_per_s.value, "no faster than that"


@pytest.mark.parametrize("bytes_per_s", [1.0, 1e3])
def test_a_machine_on_which_a_layer_takes_hours_is_refused_in_words(bytes_per_s):
    found = derived_profile(with_overrides(platform(), {"memory.bytes_per_s": bytes_per_s}), demand(["gpu0"]))
    with pytest.raises(ProfileError, match=r"lane 'gpu0': .* takes .* hours for 1 row; look through its numbers"):
        predict(Schedule(method="autoregressive", target_lane="gpu0"), found.profile, ACCEPTANCE, costs=found.costs)


def test_what_no_profile_can_hold_is_refused_in_words():
    """A way of two links that take an hour each."""
    slow = with_overrides(platform(), {"gpu0-gpu1.latency_s": LONGEST_S, "gpu0-npu.latency_s": LONGEST_S})
    with pytest.raises(ProfileError, match=r"LinkProfile comes out as no machine has it .*latency_s.*look through"):
        derived_profile(slow, demand(["gpu1", "npu"]))


@pytest.mark.parametrize(
    ("machine", "lane", "weights", "draft_s", "target_s"),
    [
        ("rtx3090", "gpu", "q4_k_m", 5e-4, 0.0),  # curves of whole passes have it in them
        ("2xrtx3090", "gpus", "q4_k_m", 2e-3, 0.0),
        ("2xrtx3090", "gpu0", "q4_k_m", 5e-4, 0.0),
        ("rtx3090", "cpu", "q4_k_m", 5e-4, 0.0),
        ("core-i9-14900k", "cpu", "q4_k_m", 5e-4, 0.0),
        ("cpu-2core", "cpu0", "int4", 0.0, 0.0),  # `mirrorsd run` has it
        ("m4-max", "gpu", "mlx-4bit", 5e-4, 0.0),
        ("2xh100", "gpus", "bf16", 5.6e-4, 5.6e-4),  # by a kernel law
        ("lunar-lake", "gpu", "int4", 0.0, 0.0),
    ],
)
def test_an_engines_host_takes_its_time_for_each_pass_of_a_draft(machine, lane, weights, draft_s, target_s):
    models = {
        role: StoredModel(shape=model_shape(name), weights=weights)
        for role, name in (("target", "qwen3-8b"), ("draft", "qwen3-0.6b"))
    }
    cost = lane_cost(load_platform(machine), Demand(**models, lanes=[lane], exits=()), lane)
    free = replace(cost, device=replace(cost.device, engine_step_s=0.0))
    for part, step_s in ((DRAFT_STEP, draft_s), (LM_HEAD, target_s), (LAYER, 0.0)):
        assert cost.one(part, 4, 512) - free.one(part, 4, 512) == pytest.approx(step_s)
        assert cost.shared(part, 4).reading_s - free.shared(part, 4).reading_s == pytest.approx(step_s)
    looked_up, unpaid = (replace(one, draft=replace(models["draft"], head=LOOKUP)) for one in (cost, free))
    assert looked_up.one(Part("heads"), 1, 512) == unpaid.one(Part("heads"), 1, 512)


@pytest.mark.parametrize(
    ("machine", "lane", "weights", "head", "reads"),
    [
        ("rtx3090", "gpu", "q4_k_m", None, True),
        ("rtx3090", "gpu", "awq-int4", None, False),  # by vLLM
        ("h100", "gpu", "bf16", None, False),
        ("m4-max", "gpu", "mlx-4bit", None, False),
        ("rtx3090", "gpu", "q4_k_m", "eagle3", False),
        ("rtx3090", "gpu", "q4_k_m", "mtp", True),
        ("rtx3090", "gpu", "awq-int4", "mtp", False),
        ("rtx3090", "cpu", "q4_k_m", None, True),  # it runs the draft there as well
        ("rtx3090", "cpu", "awq-int4", None, False),
        ("lunar-lake", "npu", "q4_k_m", None, False),
        ("core-i9-14900k", "cpu", "q4_k_m", None, True),  # which is all that runs there
        ("cpu-2core", "cpu0", "int4", None, False),
    ],
)
def test_a_draft_of_llama_cpp_reads_every_verified_row_once_more(machine, lane, weights, head, reads):
    target, draft = (StoredModel(shape=model_shape(name), weights=weights) for name in ("qwen3-8b", "qwen3-0.6b"))
    draft = draft if head is None else replace(target, shape=head_shape(head, target.shape), head=head)
    cost = lane_cost(load_platform(machine), Demand(target=target, draft=draft, lanes=[lane], exits=()), lane)
    assert (cost.missing(DRAFT_READS, 3, np.array([512.0])) is None) == reads
    if reads:
        once = cost.one(DRAFT_STEP, 3, 512) - cost.device.engine_step_s
        if head == "mtp":  # which mirrors rows without naming tokens
            once = replace(cost, draft=None, target=draft).one(LAYER, 3, 512)
        assert cost.one(DRAFT_READS, 3, 512) == pytest.approx(once)
