"""What a person sees on a narrow terminal, and what a pipe gets."""

import io
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest
from rich.console import Console

from mirrorsd.cli import console, progress_bar
from mirrorsd.cli.console import STOPPING
from mirrorsd.cli.tables import outcome_table, plain_table
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


@pytest.mark.parametrize("where", ["terminal", "fresh_consoles"])
def test_a_terminal_gets_lines_that_break_between_words_and_a_pipe_whole_ones(where, request, capsys):
    request.getfixturevalue(where)
    console.show(WORDS * 5)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 if where == "terminal" else len(lines) == 1
    assert " ".join(line.strip() for line in lines) == (WORDS * 5).strip()


def test_the_next_command_stays_on_one_line_and_can_be_pasted(terminal, capsys):
    console.say_next("run", "--schedule", "a folder/" + "deep/" * 20 + "best.yaml", "--prompt", "Why is it so?")
    (line,) = capsys.readouterr().err.splitlines()
    assert "--schedule 'a folder/deep/" in line
    assert line.replace("\x1b[0m", "").endswith("--prompt 'Why is it so?'")


def test_no_character_of_ours_or_anybodys_is_obeyed_by_a_terminal(terminal, capsys):
    """Names, prompts and errors come from files that others wrote."""
    console.show(plain_table("title \x1b[2J", ("",), (), [("cell \x1b]0;owned\x07 \x9b31m",)]))
    console.say("[bold]message[/] \x1b[31m\r\b\x7f")
    with progress_bar.task("task \x1b[2J") as report:
        report("step \x1b[2J", 0.5)
    out, err = capsys.readouterr()
    ours = re.compile(r"\x1b\[[0-9;]*m|\x1b\[2K|\x1b\[1A|\x1b\[\?25[lh]|\r")
    assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", ours.sub("", out + err)) == []
    assert "\x1b[2J" not in out + err
    assert "\x1b[31m" not in err


NAMES = (
    "mirror from exit 15 + draft, 3 drafted, 4 + 4 roots per row",
    "EAGLE-3, tree of 16, 5 deep, top 4, pooled, target on cpu0+1",
    "synchronous, 2 drafted, exit features, 2 streams, pooled",
)


def entry(name, **more):
    numbers = {"tpot_s": 0.0452, "tpot_s_low": 0.0, "tpot_s_high": 0.455}
    measured = {"tpot_s": 0.0603, "mean_acceptance_length": 2.5, "reuse_rate": 0.5}
    return {
        "name": name,
        "predicted": numbers,
        "measured": measured,
        "tpot_error": -0.25,
        "tpot_error_at_anchor": -0.031,
        "speedup_measured": {"value": 1.31, "low": 1.2, "high": 1.43},
        "rounds_equal": {"equal": 0, "of": 12},
        "rounds_alarm": False,
        "lost_lane": False,
        "events": [],
    } | more


def page_of(result, width, **how):
    page = Console(file=io.StringIO(), width=width, **how)
    page.print(outcome_table(result, width=width))
    return page.file.getvalue()


@pytest.mark.parametrize(("width", "lines_a_row"), [(80, 3), (200, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_a_schedules_name_has_room_in_the_table(name, width, lines_a_row):
    _, heading, *rows = page_of({"schedules": [entry(name)], "winner": name}, width).splitlines()
    assert 1 <= len(rows) <= lines_a_row
    assert ("tokens/round" in heading) == (width == 200)
    assert all(part in rows[0] for part in ("45.2", "60.3", "-25.0%", "-3.1%", "12 of 12 differ"))
    assert ("1.31 (1.20-1.43)" in rows[0]) == (width == 200)
    assert "..." not in "".join(rows)
    assert "\u2026" not in "".join(rows)
    assert re.search(r"error +corr", heading)


def test_rounds_that_should_not_differ_are_red_and_a_lost_lane_is_marked():
    shown = {
        is_alarm: page_of({"schedules": [entry("plain", rounds_alarm=is_alarm)]}, 80, force_terminal=True)
        for is_alarm in (True, False)
    }
    assert "\x1b[31m12 of 12 differ" in shown[True]
    assert "\x1b[31m" not in shown[False]
    same = entry("plain, split", rounds_equal={"equal": 12, "of": 12}, lost_lane=True, events=["cpu1: it hung"])
    (row,) = page_of({"schedules": [same]}, 200).splitlines()[2:]
    assert "plain, split (a lane died)" in row
    assert "was lost" not in page_of({"schedules": [same | {"lost_lane": False}]}, 200), "it was stopped"
    assert row.endswith("same")
    single = entry("plain", speedup_measured={"value": 1.31, "low": None, "high": None})
    text = page_of({"schedules": [single, entry("other", speedup_measured=None)]}, 200)
    assert " 1.31 " in text
    assert "(" not in text, "a ratio without an interval is shown alone"


def test_a_narrow_terminal_cuts_words_and_no_numbers(terminal, capsys):
    with progress_bar.stages() as report:
        report(StageReport("Running schedules for real", 4, 5, "prompt 1 of 1, schedule 1 of 12", 125.0, 0.32))
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert re.search(r" 32% \S{16} 0:00:0\d about 2 min left, \[4/5\] Running", shown)


STUBBORN = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
"""A lane: it does not hear the keyboard, and is busy."""
VERB = f"""
    import signal, subprocess, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    import typer
    from decoding.errors import LaneDiedError
    from mirrorsd.cli.console import telling_what_was_saved

    lane = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}])
    try:
        with telling_what_was_saved(["a.yaml is there."]):
            try:
                print(lane.pid, flush=True)
                lane.wait()
            finally:
                lane.wait()
                raise LaneDiedError("its process ended")
    except typer.Exit as left:
        sys.exit(left.exit_code)
"""


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="only /proc tells which processes are ours")  # noqa: PTH112
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_busy_lane_is_not_waited_for_and_its_error_hides_nothing(number):
    verb = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(VERB)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lane = int(verb.stdout.readline())
    verb.send_signal(number)
    _, stderr = verb.communicate(timeout=60)  # the lane alone would take ten minutes
    assert verb.returncode == 128 + number
    assert stderr == f"\n{STOPPING}\n\nInterrupted. a.yaml is there.\n"
    assert not is_running(lane)


PRESSED = """
    import os, signal
    usual = signal.default_int_handler
    signal.signal(signal.SIGINT, usual)
    from mirrorsd.cli import console
    console.end_lanes = lambda: os.write(2, b"lanes ended\\n")
"""


def said_by(code):
    """What a process of its own says on stderr: a runner's worker may have threads that hear the keyboard too."""
    whole = textwrap.dedent(PRESSED) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=60, check=True).stderr


def test_it_is_answered_before_anything_else_happens_and_afterwards_all_is_as_it_was():
    said = said_by("""
        with console.answering_signals() as which_came:
            assert which_came() is None
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                os.write(2, b"interrupted\\n")
            assert which_came() == signal.SIGINT
        assert signal.getsignal(signal.SIGINT) is usual
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
            with console.answering_signals() as which_came:
                signal.raise_signal(ignored)
                assert which_came() is None, "who ignores the keyboard, or runs under nohup, goes on doing so"
    """)
    assert said == f"\n{STOPPING}\nlanes ended\ninterrupted\n"


def test_a_signal_that_is_sent_twice_at_once_is_one_and_a_later_one_ends_the_command():
    said = said_by("""
        def sent_again():
            os.write(2, b"lanes ended\\n")
            signal.raise_signal(signal.SIGTERM)
        console.end_lanes = sent_again
        with console.answering_signals():
            try:
                signal.raise_signal(signal.SIGTERM)
            except KeyboardInterrupt:
                os.write(2, b"interrupted\\n")
            console._ONCE_S = 0.0
            if os.fork() == 0:
                signal.raise_signal(signal.SIGTERM)
                os.write(2, b"goes on\\n")
                os._exit(0)
            os.write(2, f"ended by {os.waitstatus_to_exitcode(os.wait()[1])}\\n".encode())
    """)
    assert said == f"\n{STOPPING}\nlanes ended\ninterrupted\nended by {-signal.SIGTERM}\n"
