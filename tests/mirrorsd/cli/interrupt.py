"""Runs the command in a process of its own and presses Ctrl-C once something has happened."""

import signal
import subprocess
import sys
import time
from pathlib import Path

_ROOT = Path(__file__).parents[3]
FEW_SIZES = "from tests.journeys import quick; quick.few_sizes()"
"""What a calibration begins with that is to be quick."""
_CALL = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from mirrorsd.cli import main; main()"


def interrupted(words, *, said="", when=lambda: True, first="pass"):
    """(exit status, stdout, stderr) of the command called with `words` and interrupted after it has said something.

    Args:
        words: of the command line.
        said: what a line on stderr must hold before.
        when: what must hold before as well.
        first: what the process does before the command.
    """
    command = [sys.executable, "-c", f"{first}\n{_CALL}", *map(str, words)]
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    heard = ""
    while said not in heard:
        line = process.stderr.readline()
        assert line, heard
        heard += line
    while not when():
        assert process.poll() is None, heard + process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    return process.returncode, stdout, heard + stderr
