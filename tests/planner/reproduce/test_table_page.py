import re

from planner.reproduce.fitted_table import Baselines
from planner.reproduce.published_table import parse_table
from planner.reproduce.reproduction import predict_table
from planner.reproduce.table_page import render_page

UNKNOWN = Baselines(None, None)


def test_every_cell_is_a_dot_and_a_row(fitted):
    page = render_page(fitted, UNKNOWN, "fitted to x")
    assert page.count("<circle") == 12
    assert page.count("<tr><td>") == 12 + 4 + 4 + 3
    assert "fitted to x; none belongs to a cell" in page


def test_what_is_predicted_as_published_lies_on_the_diagonal(setup, fitted):
    table = parse_table("temperature,task,Vanilla SD,Mirror-SD\n0,qa,2,3\n", source="t.csv")
    exact = predict_table(table, setup, fitted.constants).cells[0].mirror_streaming
    table = parse_table(f"temperature,task,Vanilla SD,Mirror-SD\n0,qa,2,{exact}\n", source="t.csv")
    page = render_page(predict_table(table, setup, fitted.constants), UNKNOWN, "given")
    x, y = map(float, re.search(r'cx="([\d.]+)" cy="([\d.]+)"', page).groups())
    assert x + y == 400.0


def test_it_fetches_nothing_and_takes_text_literally(setup, machine):
    table = parse_table("temperature,task,Vanilla SD\n0,<b>qa</b>,1.8\n", source="t.csv")
    page = render_page(predict_table(table, setup, machine.datasheet()), UNKNOWN, "given")
    assert "<b>" not in page
    assert "<circle" not in page
    assert "http" not in page
