from types import SimpleNamespace

import pytest

from decoding.errors import ConfigError
from planner.platform_plan.changed_numbers.moved_question import MovedQuestion
from planner.platform_plan.changed_numbers.number_sweep import (
    SweptNumber,
    _break_even,
    parse_sweep,
    sweep_numbers,
    turns,
)
from planner.platform_plan.platform_plan import BreakEvenRate, plan_platform
from tests.planner.platform_plan.conftest import question


@pytest.fixture(scope="module")
def asked(lunar_lake):
    return MovedQuestion(lunar_lake)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("npu.memory_bytes_per_s=20:120:3", (2e10, 7e10, 1.2e11)),
        ("npu.memory_bytes_per_s=20 GB/s,80e9", (2e10, 8e10)),
        ("npu.dispatch_s=100us:1 ms:2", (1e-4, 1e-3)),
        ("acceptance.rate=0.2:0.8:2", (0.2, 0.8)),
    ],
)
def test_a_range_or_a_list_is_read_with_units(text, values):
    assert parse_sweep(text).values == pytest.approx(values)


@pytest.mark.parametrize("text", ["npu", "npu.dispatch_s=", "npu.x=1:2:3:4", "npu.x=a"])
def test_what_is_no_range_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match="such as npu.memory_bytes_per_s=20:120"):
        parse_sweep(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("npu.x=3:1", "LOW has to be below HIGH"),
        ("npu.x=3:3", "LOW has to be below HIGH"),
        ("npu.x=1:2:1", "STEPS are from 2 to 100, not 1"),
    ],
)
def test_a_range_that_spans_nothing_is_refused_with_what_is_wrong(text, told):
    with pytest.raises(ConfigError, match=told):
        parse_sweep(text)


@pytest.mark.parametrize(
    ("field", "value", "ends"),
    [
        ("gpu.memory_efficiency", 3.0, "from 1e-06 to 1"),
        ("gpu.memory_efficiency", 0.0, "from 1e-06 to 1"),
        ("npu.dispatch_s", -1.0, "at least 0"),
        ("gpu.bf16_flops", 0.0, "at least 1"),
        ("memory_pool.efficiency", 1.1, "from 1e-06 to 1"),
    ],
)
def test_a_number_is_swept_only_over_what_is_possible(asked, field, value, ends):
    with pytest.raises(ConfigError, match=f"--sweep {field}: {value:g} is not possible; values are {ends}"):
        sweep_numbers(asked, [SweptNumber(field=field, values=(value,))])


def test_a_value_that_is_given_twice_is_asked_once():
    assert parse_sweep("npu.x=3,1,3").values == (1, 3)
    with pytest.raises(ConfigError, match="such as npu.memory_bytes_per_s=20:120"):
        parse_sweep("npu.x=1,1e400")


def test_at_the_platforms_own_value_the_sweep_has_the_plans_answer(asked):
    own = asked.question.platform.memory_pools["memory"].bytes_per_s.value
    (cell,) = sweep_numbers(asked, [SweptNumber(field="memory.bytes_per_s", values=(own,))])
    plan = asked.plan
    assert cell.standing.leader == asked.leader
    assert cell.standing.speedup == pytest.approx(plan.comparison.value, rel=1e-9)
    assert cell.even.at == pytest.approx(plan.needed.at, abs=1e-3)
    there = asked.standing({"memory.bytes_per_s": own, "acceptance.rate": cell.even.at})
    assert there.speedup == pytest.approx(1, abs=5e-3)


@pytest.mark.parametrize(
    ("speedup", "at", "always", "never"),
    [
        (lambda rate: 0.5 + rate, 0.5, False, False),
        (lambda rate: 1.2, None, True, False),
        (lambda rate: 0.8, None, False, True),
        (lambda rate: 1.5 - rate, None, False, False),
    ],
)
def test_a_cell_says_on_which_side_its_break_even_is_where_no_rate_is_one(speedup, at, always, never):
    asked = SimpleNamespace(
        question=SimpleNamespace(acceptance=SimpleNamespace(field="acceptance.rate", value=0.6)),
        standing=lambda changes: SimpleNamespace(speedup=speedup(changes["acceptance.rate"])),
    )
    found = _break_even(asked, {})
    assert (found.at, found.always, found.never) == (at and pytest.approx(at), always, never)
    assert _break_even(asked, {"acceptance.rate": 0.5}) == BreakEvenRate(), "the rate itself is swept"


def test_a_group_uses_the_devices_that_it_consists_of(h100x2):
    (cell,) = sweep_numbers(MovedQuestion(h100x2), [SweptNumber(field="gpu1.memory_efficiency", values=(0.8,))])
    drafting = {way: time_s for way, time_s in cell.standing.times_s.items() if way.kind != "plain"}
    assert cell.there == min(drafting, key=drafting.get)
    assert cell.there.pair.target == "gpus"


def test_two_numbers_make_a_grid_and_turns_are_between_its_neighbours(asked):
    numbers = [parse_sweep("gpu.two_streams_slowdown=1.0,3.0"), parse_sweep("acceptance.rate=0.01,0.6")]
    cells = sweep_numbers(asked, numbers)
    assert [cell.values for cell in cells] == [(1.0, 0.01), (1.0, 0.6), (3.0, 0.01), (3.0, 0.6)]
    assert [(one.values, other.values) for one, other in turns(cells)] == [
        ((1.0, 0.01), (1.0, 0.6)),
        ((3.0, 0.01), (3.0, 0.6)),
    ]
    assert str(cells[0].standing.leader) == "plain decoding on gpu"


def test_layers_that_move_between_the_same_devices_turn_nothing():
    models = ("llama-3.1-70b", "llama-3.2-1b")
    split = plan_platform(question("rtx3090", weights="q4_k_m", models=models, lengths=(64, 24)))
    cells = sweep_numbers(MovedQuestion(split), [parse_sweep("gpu.memory_bytes=16e9,24e9,96e9")])
    less, more, all_of_them = [cell.standing.leader for cell in cells]
    assert less != more, "which has more layers on the card"
    assert all_of_them.pair.target == "gpu"
    assert [(one.values, other.values) for one, other in turns(cells)] == [((24e9,), (96e9,))]


def test_a_number_that_no_part_has_is_refused(asked):
    with pytest.raises(ConfigError, match="set PART.FIELD"):
        sweep_numbers(asked, [SweptNumber(field="tpu.dispatch_s", values=(1e-3,))])
