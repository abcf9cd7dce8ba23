from hwprofiles.platform import Platform, load_platform
from planner.platform_plan.device_pairs import LanePair, lane_pairs, usable_lanes
from planner.platform_plan.schedules import schedules_on
from tests.planner.platform_plan.conftest import question


def pairs_of(name):
    platform = load_platform(name)
    lanes, _ = usable_lanes(platform)
    return lane_pairs(platform, lanes)


def test_two_equal_gpus_are_one_place_for_the_target_and_a_group_takes_turns_with_a_draft_on_its_first():
    assert set(pairs_of("h100x2")) == {
        LanePair.alone("gpu0"),
        LanePair.alone("gpus"),
        LanePair("gpu0", "gpu0#2"),
        LanePair("gpu0", "gpu1"),
        LanePair("gpus", "gpu0", in_turn=True),
    }


def test_of_many_equal_drafts_the_nearest_on_the_same_memory_and_the_nearest_elsewhere_are_asked_about():
    drafts = [pair.draft for pair in pairs_of("m2-ultra-x8") if pair.target == "gpu0" and not pair.in_turn]
    npus = [draft for draft in drafts if draft.startswith("npu") and draft != "npus"]
    assert npus == ["npu0", "npu1"]
    assert len(drafts) < 10


def test_a_second_stream_is_a_place_for_the_draft_where_the_sheet_says_what_it_costs():
    known = load_platform("lunar-lake")
    assert [pair for pair in pairs_of("lunar-lake") if pair.draft.endswith("#2")] == [LanePair("gpu", "gpu#2")]
    data = known.model_dump()
    data["devices"]["gpu"]["two_streams_slowdown"] = None
    silent = Platform.model_validate(data)
    assert not [pair for pair in lane_pairs(silent, usable_lanes(silent)[0]) if pair.draft.endswith("#2")]
    assert known.members("gpu#2") == ("gpu",)


def test_on_two_streams_lanes_work_at_once_and_nothing_takes_turns():
    asked = question()
    assert {one.method for one in schedules_on(LanePair("gpu", "gpu#2"), asked, "d")} == {"mirror"}
    assert {one.method for one in schedules_on(LanePair("gpu", "npu"), asked, "d")} == {"speculative", "mirror"}


def test_no_pair_shares_a_device_unless_it_takes_turns_or_is_two_streams():
    platform = load_platform("m2-ultra-x8")
    for pair in pairs_of("m2-ultra-x8"):
        shared = set(platform.members(pair.target)) & set(platform.members(pair.draft))
        assert bool(shared) == (pair.in_turn or pair.draft == f"{pair.target}#2")


def test_a_device_of_which_too_little_is_known_is_left_out_and_named():
    data = load_platform("lunar-lake").model_dump()
    data["devices"]["box"] = {"name": "a black box", "kind": "gpu"}
    lanes, reasons = usable_lanes(Platform.model_validate(data))
    assert lanes == ["gpu", "npu", "cpu"]
    assert len(reasons) == 1
    assert reasons[0].place == "box"


def test_a_device_that_cannot_read_the_prompts_is_left_out_and_says_how_long_they_may_be():
    lanes, reasons = usable_lanes(load_platform("lunar-lake"), 2000)
    assert lanes == ["gpu", "cpu"]
    assert list(map(str, reasons)) == ["npu: it reads prompts of at most 1,024 tokens, but some prompts have 2,000"]
