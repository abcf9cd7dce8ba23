"""The page and the words of a reproduction."""

import re
from dataclasses import replace

from planner.reproduce.fitted_table import Baselines, Origin
from planner.reproduce.published_table import parse_table
from planner.reproduce.reproduction import predict_table
from planner.reproduce.table_page import at_bounds, render_page, sentences
from tests.planner.report.page import undefined_colours


def words(found):
    return "\n".join(sentences(found, Baselines(0.05, 0.04), Origin("given")))


def test_the_answer_is_how_far_it_is_off_and_what_that_is_no_proof_of(fitted):
    text = words(fitted)
    assert f"{fitted.mean_abs_error * 100:.1f} % over 12 cells" in text
    assert "qa at T = 1" in text
    assert "4.0 % if each task is left out of the fit" in text
    assert "5.0 % for a baseline: one constant times vanilla SD, each cell left out of it" in text
    assert "; not in the order of the paper's ablations" in text
    assert "fitted to these very cells" in text


def test_constants_at_an_end_of_their_bounds_are_named_first(fitted):
    assert words(fitted).startswith("At an end of its plausible range")
    assert [one.name for one in at_bounds(fitted)] == ["exit_coverage"]
    inside = replace(fitted, constants={"link_latency_s": 1e-4, "handover_s": 1e-4, "exit_coverage": 0.8})
    assert at_bounds(inside) == []
    assert "the end of" not in words(inside)


def test_another_model_or_machine_than_the_tables_is_said_first(fitted, table, setup):
    others = replace(table, target="qwen3-32b", platform="m4-max")
    text = words(predict_table(others, setup, setup.datasheet()))
    assert text.startswith(
        "Predicted for another model or machine than the table's, so errors include that difference: the prediction is "
        "for Qwen3-14B, the table is of Qwen3"
    )
    assert "the table is of Apple M4 Max (--platform m4-max)" in text
    assert (table.target, table.platform) == ("qwen3-14b", "m2-ultra-x8")
    assert "Predicted for another model" not in words(fitted)
    before = sentences(
        replace(fitted, fitted=(), table=others), Baselines(0.05, 0.04), Origin("fitted", "mirror-sd-qwen3-14b")
    )
    assert "that of a fit" not in "\n".join(before)


def test_a_table_may_say_in_words_of_its_own_what_it_is_of(setup, table):
    told = replace(table, target="Llama 3.1 8B Instruct, bf16", platform="eight H100 with NVLink")
    found = predict_table(told, setup, setup.datasheet())
    first = "Named by the table, but unknown here, so not compared with what is predicted: target 'Llama 3.1 8B"
    assert words(found).startswith(f"{first} Instruct, bf16'; platform 'eight H100 with NVLink'.")
    assert first.partition(",")[0] in render_page(found, UNKNOWN, Origin("given"))


def test_without_a_fit_nothing_is_said_to_be_fitted(table, setup):
    assert "itted" not in words(predict_table(table, setup, setup.datasheet()))


def test_what_no_acceptance_gives_is_said(setup):
    table = parse_table("temperature,task,Vanilla SD\n0,qa,1.8\n0,maths,40\n", source="t.csv")
    text = words(predict_table(table, setup, setup.datasheet()))
    assert "published speed-up in 1 cell" in text
    assert "no Mirror-SD is published" in text
    assert "lead over" not in text


UNKNOWN = Baselines(None, None)


def test_every_cell_is_a_dot_and_a_row(fitted):
    page = render_page(fitted, UNKNOWN, Origin("fitted to x"))
    assert page.count("<circle") == 12
    assert page.count("<tr><td>") == 12 + 4 + 4 + 3
    assert "fitted to x; the same for all cells" in page
    assert undefined_colours(page) == set()


def test_a_caption_is_no_wider_than_the_frame_in_which_its_table_scrolls(fitted):
    page = render_page(fitted, UNKNOWN, Origin("given"))
    assert "max-width: 100cqw" in page
    assert "container-type: inline-size" in page
    assert "vw" not in page, "a window may be wider than a page, and has a scroll bar"


def test_what_is_predicted_as_published_lies_on_the_diagonal(setup, fitted):
    table = parse_table("temperature,task,Vanilla SD,Mirror-SD\n0,qa,2,3\n", source="t.csv")
    exact = predict_table(table, setup, fitted.constants).cells[0].mirror
    table = parse_table(f"temperature,task,Vanilla SD,Mirror-SD\n0,qa,2,{exact}\n", source="t.csv")
    page = render_page(predict_table(table, setup, fitted.constants), UNKNOWN, Origin("given"))
    x, y = map(float, re.search(r'cx="([\d.]+)" cy="([\d.]+)"', page).groups())
    assert x + y == 400.0


def test_it_fetches_nothing_and_takes_text_literally(setup):
    table = parse_table("temperature,task,Vanilla SD\n0,<b>qa</b>,1.8\n", source="t.csv")
    page = render_page(predict_table(table, setup, setup.datasheet()), UNKNOWN, Origin("given"))
    assert "<b>" not in page
    assert "<circle" not in page
    assert "http" not in page
