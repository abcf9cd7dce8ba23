"""Ctrl-C, or another signal to end, in a process that waits for a lane, as the measuring verbs do."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from mirrorsd.cli.console import STOPPING

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
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with console.answering_signals() as which_came:
            signal.raise_signal(signal.SIGINT)
            assert which_came() is None, "who ignores the keyboard goes on doing so"
    """)
    assert said == f"\n{STOPPING}\nlanes ended\ninterrupted\n"
