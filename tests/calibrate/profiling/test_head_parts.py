"""Heads and streams are timed one after the other, at the level that real runs have."""

import pytest

from calibrate.profiling.grid import full_effort, quick_effort
from calibrate.profiling.head_parts import HeadParts, measure_heads
from calibrate.profiling.time_budget import Passes
from tests.calibrate.profiling.fake_heads import STREAMS_S, HeadEngine
from tests.calibrate.profiling.fake_machine import LANES, Laws

CONTEXTS = (20, 220)
METHODS = {"eagle": "eagle3", "medusa": "medusa", "streams": "speculative_streaming"}
SPEEDS = {"cpu0": 1.0, "cpu1": 0.8, "cpu0+1": 1.7}


def engine(**changes) -> HeadEngine:
    return HeadEngine({name: Laws(speed=speed) for name, speed in SPEEDS.items()}, **changes)


def parts(*, quick: bool = True) -> HeadParts:
    effort = (quick_effort if quick else full_effort)(8, CONTEXTS, 32)
    return HeadParts(effort=effort, contexts=CONTEXTS, is_quick=quick, most_rows=33, source="a test")


def measured(machine: HeadEngine, methods=None, *, quick: bool = True):
    return measure_heads(machine, LANES, methods or METHODS, parts(quick=quick), lambda: Passes(count=1))


@pytest.mark.parametrize("quick", [True, False])
def test_steps_of_heads_are_at_the_level_of_real_runs_on_every_lane(quick) -> None:
    machine = engine()
    for lane, tables in measured(machine, quick=quick).items():
        assert set(tables.heads) == {"eagle", "medusa"}
        for name, table in tables.heads.items():
            for rows in (1, 4, 8, 16):
                expected_s = 1.5 * machine.head_s(name, rows) / SPEEDS[lane]
                assert table.at(rows, 12345) == pytest.approx(expected_s)
            assert table.source == "a test"


def test_what_streams_add_is_the_same_for_all_rows() -> None:
    for lane, tables in measured(engine()).items():
        [table] = tables.streams.values()
        for rows in (1, 9, 33):
            assert table.at(rows, 500) == pytest.approx(STREAMS_S / SPEEDS[lane])


def test_streams_that_seem_to_save_time_cost_nothing(monkeypatch) -> None:
    monkeypatch.setattr("tests.calibrate.profiling.fake_heads.STREAMS_S", -1e-3)
    tables = measured(engine(), {"streams": "speculative_streaming"})
    assert tables["cpu0"].streams["streams"].at(9, 0) == 0


def test_every_head_is_loaded_once_on_every_lane() -> None:
    machine = engine()
    measured(machine)
    assert machine.loads == [(lane.name, name) for name in METHODS for lane in LANES]


def test_a_quick_calibration_decodes_pooled_and_one_way_round_a_full_one_every_way() -> None:
    def places(*, quick: bool):
        machine = engine()
        measured(machine, {"eagle": "eagle2"}, quick=quick)
        return [(schedule.target_lane, schedule.draft_lane) for schedule, _, _ in machine.decoded]

    assert places(quick=True) == [("cpu0", "cpu1"), ("cpu0+1", "cpu0+1")]
    assert places(quick=False) == [("cpu0", "cpu1"), ("cpu1", "cpu0"), ("cpu0+1", "cpu0+1")]


def test_a_lane_that_nothing_was_decoded_on_is_like_those_with_as_many_threads() -> None:
    """Only the second core and both together draft in a quick calibration; the first core is like the second."""
    machine = engine(level_of={"cpu1": 2.0, "cpu0+1": 1.2})
    tables = measured(machine, {"medusa": "medusa"})
    for lane, level in (("cpu0", 2.0), ("cpu1", 2.0), ("cpu0+1", 1.2)):
        expected_s = level * machine.head_s("medusa", 1) / SPEEDS[lane]
        assert tables[lane].heads["medusa"].at(1, 0) == pytest.approx(expected_s)


def test_texts_too_short_for_a_second_round_leave_the_tables_as_timed() -> None:
    machine = engine()
    short = HeadParts(effort=quick_effort(8, (3, 4), 32), contexts=(3, 4), is_quick=True, most_rows=33, source="a test")
    tables = measure_heads(machine, LANES, {"eagle": "eagle2"}, short, lambda: Passes(count=1))
    assert tables["cpu0"].heads["eagle"].at(4, 0) == pytest.approx(machine.head_s("eagle", 4))
