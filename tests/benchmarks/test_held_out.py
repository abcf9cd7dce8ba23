"""Rows of made-up runs, held against counting by hand; and that an interrupted series goes on where it was."""

import json
from dataclasses import replace

import pytest

from calibrate.prompts import bundled_prompts
from tests.benchmarks.scripts import RESULTS, load_script
from tests.mirrorsd.compare.made_up_runs import made_up_runs
from tests.planner.synthetic import CHAINS, acceptance_record, machine

HERE = {"machine": {"cpu_model": "Some CPU", "instruction_sets": "avx2", "num_cores": 2}, "date": "2026-11-30"}


@pytest.fixture
def rows():
    return load_script("_held_out_rows")


@pytest.fixture
def script():
    return load_script("held_out")


KEPT = json.loads((RESULTS / "held-out.json").read_bytes())


def row(predicted_s, measured_s, **facts):
    """A committed row with other times."""
    kept = KEPT["rows"][0]
    measured = None if measured_s is None else {"tpot_s": measured_s}
    return kept | HERE | {"predicted": kept["predicted"] | {"tpot_s": predicted_s}, "measured": measured} | facts


def test_the_committed_summary_is_that_of_its_rows(rows):
    assert rows.summary(KEPT["rows"]) == KEPT["summary"]


def test_a_run_takes_the_place_of_what_was_predicted_for_it_and_of_nothing_else(rows):
    earlier = [row(1.0, 1.0, date="2026-11-29"), row(1.0, 1.0, cell="long-64")]
    announced = [row(1.0, None), row(2.0, None)]
    kept = rows.with_run(earlier, announced)
    assert not rows.is_done(kept, announced[0])
    over = [row(1.0, 1.1), row(2.0, 1.9)]
    kept = rows.with_run(kept, over)
    assert kept == [*earlier, *over]
    assert rows.is_done(kept, announced[0])


@pytest.mark.parametrize(
    "facts", [{"date": "2026-12-01"}, {"profile": "other.yaml"}, {"busy": True}, {"machine": {"cpu_model": "Another"}}]
)
def test_a_run_of_another_day_or_machine_or_profile_is_not_this_one(rows, facts):
    assert not rows.is_done([row(1.0, 1.0)], row(1.0, None, **facts))


def test_no_prompt_is_of_the_demos_set_or_in_two_cells_and_calibrations_have_their_own():
    script = load_script("_held_out_cells")
    draws = [script.cells(seed) for seed in (20261129, 20261130)]
    for cells in draws:
        names = [prompt.prompt_id for cell in cells for prompt in cell.prompts]
        assert len(set(names)) == len(names)
        assert not {prompt.prompt_id for prompt in bundled_prompts()} & set(names)
        assert [(cell.name, len(cell.prompts), cell.max_new_tokens, cell.num_busy) for cell in cells] == [
            ("short-32", 8, 32, 4),
            ("short-256", 6, 256, 3),
            ("short-1024", 4, 1024, 0),
            ("long-64", 3, 64, 0),
        ]
    one, other = ({prompt.prompt_id for cell in cells[:3] for prompt in cell.prompts} for cells in draws)
    assert len(one & other) < 5, "of 18 among 220"


def test_prompts_that_calibrations_share_are_counted_once(rows):
    many = [row(1.0, 1.0, prompts=["a", "b"]), row(1.0, 1.0, prompts=["b", "c"], profile="another.yaml")]
    assert rows.figures(many)["num_prompts"] == 3


def test_runs_by_a_profile_of_another_day_are_named_by_what_they_were(rows):
    page, kept = load_script("_results_page"), [row(1.0, 1.0), row(1.0, None, same_day=False)]

    def ends(*more):
        every = [*kept, *more]
        return [one["cell"] for one in page.held_out_ends({"rows": every, "summary": rows.summary(every)})]

    quiet, busy = (row(1.0, 1.0, same_day=False, busy=use) for use in (False, True))
    assert ends() == ["all"]
    assert ends(quiet) == ["all", "profile of another day, quiet"]
    assert ends(busy) == ["all", "profile of another day, busy"]
    assert ends(busy, quiet) == ["all", "profile of another day, quiet and busy"]


@pytest.fixture
def basis():
    cells = load_script("_held_out_cells")
    profile, record = machine(), acceptance_record(num_prompts=3, num_tokens=24, chains=CHAINS)
    schedules = cells.best_of_kinds(profile, record)
    return cells, cells.Basis(profile=profile, facts=HERE, schedules=schedules), record


def test_what_was_predicted_stays_as_it_was_written_and_what_was_measured_comes_to_it(basis):
    cells, made, record = basis
    two = replace(record, prompts=record.prompts[:2])
    as_calibrated = cells.predicted(made.profile, made, two)
    made = cells.at_present(made, {"both": 2.0})
    candidates, announced = cells.predicted_rows(made, as_calibrated, two, {"cell": "short-32", "busy": False})
    assert {tuple(one["paces"].items()) for one in announced} == {(("both", 2.0),)}
    plain = announced[0]["predicted"]
    assert plain["tpot_s"] == pytest.approx(2.0 * plain["as_calibrated_tpot_s"], rel=0.01)
    assert [one["measured"] for one in announced] == [None] * 7
    assert [one.prediction.num_tokens for one in candidates] == [48] * 7
    measured = made_up_runs([one.schedule for one in candidates], made.profile, two, slower=1.25)
    over = cells.measured_rows(announced, candidates, measured, made, two)
    assert [one["predicted"] for one in over] == [one["predicted"] for one in announced]
    assert [one["tpot_error"] for one in over] == pytest.approx([-0.2] * 7)
    assert [one["rounds_equal"] for one in over] == [{"equal": 2, "of": 2}] * 7
    assert over[0]["speedup"] is None
    assert [one["speedup"]["error"] for one in over[1:]] == pytest.approx([0.0] * 6, abs=1e-9)
    assert all(one["speedup"]["is_held"] for one in over[1:])


def test_a_result_of_other_weights_is_not_added_to(script, tmp_path):
    out = tmp_path / "held-out.json"
    kept = script._kept(out, {"model": "abc"})
    script._write(kept, out, [row(1.0, 1.0)])
    assert script._kept(out, {"model": "abc"})["rows"] == kept["rows"]
    with pytest.raises(SystemExit, match=r"other weights or formats \(model\)"):
        script._kept(out, {"model": "abd"})
