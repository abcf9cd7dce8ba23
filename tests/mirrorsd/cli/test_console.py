"""What a person sees on a narrow terminal, and what a pipe gets."""

import io
import re

import pytest
from rich.console import Console

from mirrorsd.cli import console, progress_bar
from mirrorsd.cli.tables import interval, outcome_table
from mirrorsd.demo.stages import StageReport

WORDS = "Synchronous speculation is within the interval of plain decoding, which is simpler and so the better choice. "


@pytest.fixture
def fresh_consoles():
    """The consoles are made once for a process; these tests make them for other circumstances."""

    def forget():
        console.results.cache_clear()
        console.messages.cache_clear()

    forget()
    yield
    forget()


@pytest.fixture
def terminal(fresh_consoles, monkeypatch):
    """80 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def test_a_terminal_gets_lines_that_break_between_words(terminal, capsys):
    console.show(WORDS * 5)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(line.strip() for line in lines) == (WORDS * 5).strip()


def test_a_pipe_gets_lines_as_they_are(fresh_consoles, capsys):
    console.show(WORDS * 5)
    assert capsys.readouterr().out == WORDS * 5 + "\n"


def test_the_next_command_stays_on_one_line_and_can_be_pasted(terminal, capsys):
    console.say_next("run", "--schedule", "a folder/" + "deep/" * 20 + "best.yaml", "--prompt", "Why is it so?")
    (line,) = capsys.readouterr().err.splitlines()
    assert "--schedule 'a folder/deep/" in line
    assert line.replace("\x1b[0m", "").endswith("--prompt 'Why is it so?'")


@pytest.mark.parametrize(("load", "warns"), [(0.0, False), (64.0, True)])
def test_a_busy_machine_is_named_before_it_is_measured(fresh_consoles, monkeypatch, capsys, load, warns):
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    console.say_if_busy()
    assert capsys.readouterr().err.startswith("This machine was busy (load average 64.0 on") == warns


def entry(name):
    numbers = {"tpot_s": 0.0452, "tpot_s_low": 0.0, "tpot_s_high": 0.455}
    measured = {"tpot_s": 0.0603, "mean_acceptance_length": 2.5, "reuse_rate": 0.5}
    return {
        "name": name,
        "predicted": numbers,
        "measured": measured,
        "tpot_error": -0.25,
        "same_rounds": False,
        "divergences": [{}] * 12,
    }


@pytest.mark.parametrize(("width", "lines_a_row"), [(80, 2), (200, 1)])
def test_a_schedules_name_has_room_in_the_table(width, lines_a_row):
    name = "mirror from exit 15 + draft, 3 drafted, 4 + 4 roots per row"
    page = Console(file=io.StringIO(), width=width)
    page.print(outcome_table({"schedules": [entry(name)], "winner": name}, width=width))
    _, heading, *rows = page.file.getvalue().splitlines()
    assert len(rows) == lines_a_row
    assert ("tokens/round" in heading) == (width == 200)
    assert all(part in rows[0] for part in ("45.2", "60.3", "-25.0%", "12 differ"))


def test_an_interval_that_begins_at_nothing_names_its_end_only():
    assert interval(0.0, 0.455) == "up to 455"
    assert interval(0.0141, 0.0165) == "14.1-16.5"


def test_a_narrow_terminal_cuts_words_and_no_numbers(terminal, capsys):
    with progress_bar.stages() as report:
        report(StageReport("Running schedules for real", 4, 5, "prompt 1 of 1, schedule 1 of 12", 125.0, 0.32))
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "about 2 min left, [4/5] Running" in shown
    assert " 32%" in shown
