"""The script that times the simulator: a quick run fills every part, and goals are compared with what was found."""

import json
import sys

import pytest

from tests.benchmarks.scripts import load_script


@pytest.fixture(scope="module")
def script():
    return load_script("simulator_speed")


@pytest.fixture(scope="module")
def quick(script, tmp_path_factory):
    path = tmp_path_factory.mktemp("speed") / "speed.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["simulator_speed.py", "--quick", "--output", str(path)])
        script.main()
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_world_and_machine_is_timed_by_both_clocks(script, quick):
    kinds = {name.split(":")[0] for name in quick["cases"]}
    events = {f"events, {kind}" for kind in (script.POOL, script.SLOWED, script.EIGHT)}
    assert kinds == events | {script.ARRAYS, script.ARRAYS_ANEW}
    for case in quick["cases"].values():
        assert case["rounds"] > 0
        assert len(case["rounds_per_cpu_s"]) == len(case["rounds_per_wall_s"]) == script.QUICK.repeats


def test_every_goal_is_answered(script, quick):
    found = {one["of"].split(":")[0] for one in quick["goals"]}
    assert {f"events, {script.POOL}", f"events, {script.EIGHT}", script.ARRAYS} <= found
    assert any(name.startswith("search of") for name in found)
    assert {name.split()[-1] for name in found if name.startswith("growth")} == {"schedules", "prompts"}


def test_growth_has_every_size_and_the_rounds_that_were_played(script, quick):
    for name, sizes in (("schedules", script.QUICK.schedules), ("prompts", script.QUICK.prompts)):
        assert [one["size"] for one in quick["growth"][name]] == list(sizes)
        rounds = [one["runs"][0]["rounds"] for one in quick["growth"][name]]
        assert rounds[1] > 5 * rounds[0]


def test_schedules_of_growth_are_all_different(script):
    made = load_script("_simulator_jobs")
    some = [one for one, _ in zip(made.different_schedules(), range(3000), strict=False)]
    assert len(set(some)) == len(some)


@pytest.mark.parametrize(("process_s", "power"), [((1, 10, 100), 1), ((1, 100, 10_000), 2)])
def test_the_exponent_is_the_power_by_which_cost_grows(script, process_s, power):
    grown = [{"size": 10 ** (place + 1), "runs": [{"process_s": one}]} for place, one in enumerate(process_s)]
    assert script.exponent(grown) == pytest.approx(power)


def test_a_goal_is_reached_by_the_middle_repeat_and_by_the_slower_run(script):
    jobs = load_script("_simulator_jobs")
    cases = {
        f"{script.ARRAYS}: {name}": {"rounds": 1, "rounds_per_cpu_s": repeats, "rounds_per_wall_s": repeats}
        for name, repeats in (("quick", [1, 4_000_000, 5_000_000]), ("slow", [1, 3_999_999, 9_000_000]))
    }
    search = [jobs.Taken(10, 1, seconds, seconds, 10**9) for seconds in (100.0, 121.0)]
    growth = {
        name: [{"size": size, "runs": [{"process_s": float(size**power)}]} for size in (10, 100)]
        for name, power in (("schedules", 1), ("prompts", 2))
    }
    reached = [one["is_reached"] for one in script.goals(cases, search, growth)]
    assert reached == [True, False, False, True, True, False]
