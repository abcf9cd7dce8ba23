import pytest

from costs.durations import DurationFacts, Durations, DurationTables
from costs.round_plan import RoundShape
from costs.ticks import TICK_S
from decoding.errors import ConfigError, OutOfRangeError, ProfileError
from decoding.schedule import Schedule
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import Profile
from sim.evaluator import predict
from sim.world import simulate
from tests.costs.constant_cost import ConstantCost
from tests.sim.playing import by_rows
from tests.sim.worlds.machines import constant, lane, machine
from tests.sim.worlds.records import TREES, prompt, record
from tests.sim.worlds.schedules import AUTOREGRESSIVE, mirror, speculative, tree


def durations(schedule: Schedule, profile: Profile, *, num_exit_roots: int = 0) -> Durations:
    shape = RoundShape(schedule.num_rows - 1, num_exit_roots)
    return DurationTables(profile, range(3, 6)).durations(schedule, shape)


def facts(schedule: Schedule, profile: Profile, *, num_exit_roots: int = 0) -> DurationFacts:
    shape = RoundShape(schedule.num_rows - 1, num_exit_roots)
    return DurationTables(profile, range(3, 6)).facts(schedule, shape)


def test_a_step_with_guesses_has_a_row_for_each_and_pays_for_guessing_them():
    parts = {"draft_step": by_rows(1.0, 2.0, 4.0), "draft_streams": by_rows(8.0, 16.0)}
    profile = machine(lane("target"), lane("draft").model_copy(update=parts))
    for features in (False, True):
        schedule = speculative(4, draft_streams=2, exit_features=features)
        assert durations(schedule, profile).guessing_s[:, 0].tolist() == [1.0, 2.0 + 8.0, 4.0 + 16.0]
    assert len(durations(speculative(4), profile).guessing_s) == 0


def test_so_has_a_step_of_all_branches():
    parts = {"draft_step": by_rows(*range(1, 16)), "draft_streams": by_rows(*range(100, 1100, 100))}
    profile = machine(lane("target"), lane("draft").model_copy(update=parts))
    found = durations(mirror("draft", num_tokens=4, draft_streams=2), profile).step_s
    assert {kind: step[0] for kind, step in found.items()} == {
        "one_row": 1,
        "last_drafted": 1,
        "draft_roots": 5,
        "draft_later": 15 + 1000,
    }


def test_a_step_with_guesses_takes_the_memory_of_both_its_calls():
    target = dict.fromkeys(("layer", "lm_head"), constant(1.0, num_bytes=8))
    parts = {"draft_step": constant(1.0, num_bytes=2), "draft_streams": constant(1.0, num_bytes=14)}
    lanes = lane("target").model_copy(update=target), lane("draft").model_copy(update=parts)
    profile = machine(*lanes, memory_pool_bytes_per_s=10)
    [found] = durations(mirror("draft", num_tokens=4, draft_streams=2), profile).slowdowns
    assert [times.tolist() for times in found["draft_roots"]] == [[1.0] * 3] * 2, "8 and 2 bytes per second"
    assert [times.tolist() for times in found["draft_later"]] == [[8 / 5] * 3] * 2, "8, and (2 + 14) / 2"


def test_parts_of_heads_and_streams_are_found_by_the_drafters_name():
    profile = machine(lane("target", head_step=5), lane("draft", head_step=3))
    medusa = tree(TREES[0], 7)
    assert durations(medusa, profile).catch_up_s[:, 0].tolist() == [3, 3, 3, 3]
    assert durations(medusa.model_copy(update={"draft_lane": "target"}), profile).catch_up_s[0, 0] == 5
    with pytest.raises(ProfileError, match=r"lane 'draft' has no measured head step of nobody; .* head step of head"):
        durations(medusa.model_copy(update={"drafter": "nobody"}), profile)
    streaming = tree(TREES[-1], 7).model_copy(update={"drafter": "nobody"})
    with pytest.raises(ProfileError, match=r"lane 'target' has no measured streams of nobody; .* streams of streams"):
        durations(streaming, profile)


def test_durations_are_whole_ticks_and_no_work_is_free():
    profile = machine(lane("target", layer=0.1), lane("draft", draft_step=0, dispatch_s=0.3))
    found = durations(speculative(), profile)
    times = [*found.segments_s[0], *found.step_s["one_row"], found.draft_half_s]
    assert all((seconds / TICK_S).is_integer() for seconds in map(float, times))
    assert found.step_s["one_row"].tolist() == [TICK_S] * 3
    assert found.segments_s[0] == pytest.approx([2.0] * 3)


def test_an_exit_lies_below_the_last_layer():
    with pytest.raises(ConfigError, match=r"exit_layer is 10, but the profile's target has 10 layers: 1\.\.9"):
        durations(mirror("exit", exit_layer=10), machine(), num_exit_roots=3)


def test_the_profile_must_have_the_lanes():
    with pytest.raises(ProfileError, match="no lane 'npu'; it has target, draft"):
        durations(speculative(draft_lane="npu"), machine())


def test_the_profile_must_cover_every_context_in_which_a_round_could_start():
    layer = LatencyTable(rows=(1, 8), contexts=(4, 6), seconds=((1, 1), (1, 1)), source="by hand")
    profile = machine(lane("target").model_copy(update={"layer": layer}), lane("draft"))
    simulate(AUTOREGRESSIVE, profile, record(prompt("000", prompt_length=5)))
    with pytest.raises(
        OutOfRangeError, match=r"layer on lane 'target': contexts 4\.\.7, outside 4\.\.6, were not measured"
    ):
        simulate(speculative(), profile, record(prompt("1111", prompt_length=5)))


@pytest.mark.parametrize("seconds", [1e308, 3601.0, float("nan"), float("inf"), -1.0])
def test_a_part_that_takes_no_plausible_time_is_refused_in_both_worlds(seconds):
    costs = {"target": ConstantCost({"layer": seconds, "lm_head": 2.0})}
    for ask in (simulate, predict):
        with pytest.raises(
            ProfileError, match=r"seconds of layer with 1 rows on lane 'target': at most 3600 are plausible"
        ):
            ask(AUTOREGRESSIVE, machine(), record(prompt("0")), costs=costs)


def test_so_is_a_slowdown_that_single_numbers_did_not_show():
    greedy = lane("draft").model_copy(update={"draft_step": constant(1.0, num_bytes=1e6)})
    thin = machine(lane("target"), greedy, memory_pool_bytes_per_s=1.0)
    with pytest.raises(ProfileError, match="1e\\+06 times the latency while lanes 'target' and 'draft' both compute"):
        durations(mirror("draft"), thin)


def test_errors_of_the_targets_parts_count_by_time_and_sources_are_named_once():
    def measured(table, **changes):
        assert table is not None
        return table.model_copy(update=changes)

    target = lane("target", lm_head=10)
    target = target.model_copy(update={"layer": measured(target.layer, relative_error=0.1, source="a")})
    target = target.model_copy(update={"lm_head": measured(target.lm_head, relative_error=0.3, source="b")})
    found = facts(AUTOREGRESSIVE, machine(target))
    assert found.target_relative_error == pytest.approx(0.2)
    assert found.sources == ("a", "b")
