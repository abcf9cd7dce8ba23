from dataclasses import replace

import pytest

from planner.reproduce.fitted_table import constant_error, left_out_error
from planner.reproduce.published_table import load_table, parse_table
from planner.reproduce.reproduction import predict_table
from planner.reproduce.table_page import other_columns


def test_a_constant_is_judged_on_cells_that_it_has_not_seen():
    table = parse_table("temperature,task,Vanilla SD,Mirror-SD\n0,a,1,2\n0,b,1,8\n0,c,2,\n", source="t.csv")
    # each of the two cells is predicted by the other one's ratio
    assert constant_error(table.cells) == pytest.approx((8 / 2 - 1 + 1 - 2 / 8) / 2)
    assert constant_error(table.cells[:1]) is None


def test_each_task_is_predicted_by_a_fit_of_the_others(setup, fitted):
    """A task that contradicts all others moves its own error and not theirs."""
    tasks = ("qa", "rag")
    few = replace(fitted, table=replace(fitted.table, cells=tuple(c for c in fitted.table.cells if c.task in tasks)))
    odd = tuple(replace(c, mirror=c.mirror * 1.1) if c.task == "qa" else c for c in few.table.cells)
    before, after = left_out_error(few), left_out_error(replace(few, table=replace(few.table, cells=odd)))
    assert before < after
    assert left_out_error(predict_table(few.table, setup, fitted.constants)) is None
    assert left_out_error(replace(few, table=replace(few.table, cells=few.table.cells[:1]))) is None


def test_columns_of_other_methods_cost_a_pass_over_their_tree(fitted):
    columns = {one.method: one for one in other_columns(fitted)}
    assert list(columns) == ["EAGLE-3", "EAGLE-2", "Hydra", "Medusa"]
    greedy = [cell for cell in load_table("mirror-sd-qwen3-14b").cells if cell.temperature == 0]
    assert columns["Medusa"].published == pytest.approx(sum(cell.others["Medusa"] for cell in greedy) / 6)
    assert columns["EAGLE-3"].num_cells == 3
    assert all(1 < one.predicted < one.published * 1.5 for one in columns.values())
    # by more tokens a round, and as many rows
    assert columns["EAGLE-2"].predicted < columns["EAGLE-3"].predicted < 6.23
