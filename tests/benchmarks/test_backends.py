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
