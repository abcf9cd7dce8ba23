"""The comparison of back ends asks the same of all of them."""

import pytest

from hwprofiles.host import lanes_of
from tests.benchmarks.scripts import load_script

script = load_script("backends")


def test_every_contender_runs_the_same_schedules_on_lanes_of_its_own() -> None:
    plans = {
        one.name: script.schedules_of([f"{one.device}-{part}" for part in "abc"], "draft", 20)
        for one in script.CONTENDERS
    }
    first, *others = plans.values()
    for other in others:
        assert list(other) == list(first)
        for name, schedule in other.items():
            same = {"target_lane", "draft_lane"}
            assert schedule.model_dump(exclude=same) == first[name].model_dump(exclude=same)
    assert {lane.name for lane in lanes_of("cpu")}.isdisjoint(lane.name for lane in lanes_of("openvino:CPU"))


@pytest.mark.parametrize("index", [0, 1])
def test_a_round_has_every_schedule_by_all_contenders_side_by_side_and_plain_decoding_first(index) -> None:
    plans = {one: script.schedules_of(list("abc"), "draft", 20) for one in script.CONTENDERS}
    names = list(plans[script.CONTENDERS[0]])
    found = list(script.turns(plans, index))
    assert sorted(found) == sorted((name, one) for name in names for one in script.CONTENDERS)
    count = len(script.CONTENDERS)
    for start in range(0, len(found), count):
        assert len({name for name, _ in found[start : start + count]}) == 1
    plain = [name for name in names if name.startswith("plain")]
    assert {name for name, _ in found[: count * len(plain)]} == set(plain)


def test_every_other_round_is_backwards() -> None:
    plans = {one: script.schedules_of(list("abc"), "draft", 20) for one in script.CONTENDERS}
    forwards, backwards = (list(script.turns(plans, index)) for index in (0, 1))
    assert [one for _, one in backwards] == [one for _, one in forwards[::-1]]
    assert script.CONTENDERS[0] == forwards[0][1] == backwards[-1][1]


@pytest.mark.parametrize("name", ["backends", "peers"])
def test_one_round_is_refused_for_it_has_no_spread(name, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", [name, "--rounds", "1"])
    with pytest.raises(SystemExit):
        load_script(name)._options()
    assert "1 rounds have no spread" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", [name, "--rounds", "2"])
    assert load_script(name)._options().rounds == 2


def test_ratios_are_those_of_neighbours() -> None:
    """Torch and the other slow down together: their ratio does not."""
    speeds = (1.0, 4.0, 2.0)
    runs = {
        script.TORCH: [script.Run(3.0 * speed, True) for speed in speeds],
        "other": [script.Run(1.5 * speed, is_plain_text=speed != 4.0) for speed in speeds],
    }
    result = dict(script._by_contender(runs))
    assert result["other"]["times_as_fast_as_torch"] == {
        "median": pytest.approx(2.0),
        "lower_quartile": pytest.approx(2.0),
        "upper_quartile": pytest.approx(2.0),
    }
    assert (result["other"]["num_plain_texts"], result["other"]["num_texts"]) == (2, 3)
    assert "times_as_fast_as_torch" not in result[script.TORCH]
