"""Output of the command: results on stdout or as JSON, messages and progress on stderr; and how it answers signals.

On a terminal, lines are wrapped between words. In a file or a pipe they are not wrapped, and tables are as wide as they
need. Ctrl-C and other signals end the command at once.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from mirrorsd.cli.options import STDOUT

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from decoding.record import AcceptanceRecord
    from hwprofiles.profile import Profile

WRONG_INPUT = 2
"""Exit status if something that the user gave is wrong; the same as for a wrong option."""
_BY_A_SIGNAL = 128
"""By the shell's convention, the exit status after a signal is this plus the signal's number."""
INTERRUPTED = _BY_A_SIGNAL + signal.SIGINT
"""Exit status after Ctrl-C."""
_WIDE = 240
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""The control characters of ASCII and Latin-1, except tabs and line feeds."""


@cache
def results() -> Console:
    """Return the console of stdout, which gets the results."""
    return _console(stderr=False)


@cache
def messages() -> Console:
    """Return the console of stderr, which gets progress, messages and errors."""
    return _console(stderr=True)


def show(renderable: RenderableType) -> None:
    """Print a result: text with rich's markup, or a table."""
    results().print(renderable)


def say(renderable: RenderableType) -> None:
    """Print a message: text with rich's markup, or a table."""
    messages().print(renderable)


def show_paragraphs(*texts: object) -> None:
    """Print results that are plain text, with an empty line before each."""
    for text in texts:
        show(f"\n{escaped(text)}")


def show_verdict(entry: Mapping[str, Any], *, explain: bool, more: tuple[str, ...] = ()) -> None:
    """Print what `SpeculationVerdict.entry` holds; `more` are further lines of the explanation."""
    show(f"\n{escaped(entry['verdict'])}")
    for warning in entry["warnings"]:
        show(f"[yellow]{escaped(warning)}[/]")
    for line in (*entry["explanation"], *more) if explain else ():
        show(f"\n{escaped(line)}")


def say_next(*words: object) -> None:
    """Print the `mirrorsd` command to run next."""
    say_command("Next", shlex.join(["mirrorsd", *map(str, words)]))


def say_command(what_for: str, command: str) -> None:
    """Print a command on one line, so that it can be copied."""
    messages().print(f"{what_for}: [bold]{escaped(command)}[/]", soft_wrap=True)


def say_whose(profile: Profile | None, record: AcceptanceRecord | None = None, *, runs: bool = False) -> list[str]:
    """Print and return warnings about a profile or a record that was made on another machine.

    `runs` is whether the command also runs models on this machine.
    """
    from hwprofiles.host import differences

    warnings = []
    of_profile = None if profile is None else differences(profile.host)
    if of_profile is not None:
        effect = ": predictions are for that machine, measurements are of this one" if runs else ""
        warnings.append(f"The profile is of another machine ({of_profile}){effect}.")
    of_record = None if record is None or record.host is None else differences(record.host)
    if of_record is not None:
        effect = ": texts, and with them rounds, may differ" if runs else ""
        warnings.append(f"The record was made on another machine ({of_record}){effect}.")
    for warning in warnings:
        say(f"[yellow]{escaped(warning)}[/]")
    return warnings


def escaped(text: object) -> str:
    """Return text with its square brackets escaped, which rich would otherwise take for markup."""
    from rich.markup import escape

    return escape(str(text))


@contextmanager
def telling_what_was_saved(saved: Sequence[str] | Callable[[], Sequence[str]]) -> Iterator[None]:
    """On Ctrl-C, print what is on disk by then: the sentences in `saved`, or that it returns."""

    def told() -> str:
        return " ".join(saved() if callable(saved) else saved) or "Nothing was written."

    with told_at_interruptions(lambda: f"\nInterrupted. {escaped(told())}"):
        yield


@contextmanager
def told_at_interruptions(sentence: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C and other signals, print a sentence and leave with an exit status, whatever error they led to."""
    with answering_signals() as which_came:
        try:
            yield
        except typer.Exit:  # it was told
            raise
        except BaseException as error:
            number = which_came()
            if number is None and not isinstance(error, KeyboardInterrupt):
                raise
            say(sentence())
            raise typer.Exit(INTERRUPTED if number is None else _BY_A_SIGNAL + number) from error


def harmless(text: str) -> str:
    """Replace control characters, which a terminal would execute; names and prompts may come from anywhere."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console
    from rich.segment import Segment

    class Harmless(Console):
        """A console that prints no control characters but rich's own, for colours and the cursor."""

        def render(self, *args: Any, **options: Any) -> Iterator[Segment]:
            for text, style, control in super().render(*args, **options):
                yield Segment(text if control else harmless(text), style, control)

    console = Harmless(stderr=stderr, emoji=False, highlight=False)
    if console.is_terminal:
        return console
    return Harmless(stderr=stderr, emoji=False, highlight=False, soft_wrap=True, width=_WIDE)


STOPPING: Final = "Stopping."
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a request to end by another program, and the closing of the terminal."""
_ONCE_S: Final = 1.0
"""A signal repeated within so many seconds is the same one: `timeout` signals a process and then its group."""


class _Answer:
    """The handler of signals while commands run; `came` is the number of the first one."""

    def __init__(self) -> None:
        self.came: int | None = None
        self._came_s = 0.0
        usual = {number: signal.getsignal(number) for number in _SIGNALS}
        self._usual = {one: how for one, how in usual.items() if how in (signal.default_int_handler, signal.SIG_DFL)}

    def __call__(self, number: int, _frame: object) -> None:
        if self.came is not None:
            if time.monotonic() - self._came_s >= _ONCE_S:
                self.restore()
                signal.raise_signal(number)
            return
        self._came_s = time.monotonic()  # set before `came`, since another signal may come in between
        self.came = number
        with suppress(OSError):  # not by rich, which the signal may have interrupted; the terminal may be closed
            os.write(2, f"\n{STOPPING}\n".encode())
        end_lanes()
        raise KeyboardInterrupt

    def install(self) -> None:
        for number in self._usual:
            signal.signal(number, self)

    def restore(self) -> None:
        for number, how in self._usual.items():
            signal.signal(number, how)


@contextmanager
def answering_signals() -> Iterator[Callable[[], int | None]]:
    """While the body runs, a signal prints a message, kills all lane processes, and raises `KeyboardInterrupt`.

    Lanes are killed because they would finish their work first, and whoever waits for a lane would wait for that. The
    error of a killed lane may hide the `KeyboardInterrupt`, so the yielded function returns the signal's number, or
    None. A second signal has its usual effect. Signals that were ignored stay ignored.
    """
    outer = next((one for one in map(signal.getsignal, _SIGNALS) if isinstance(one, _Answer)), None)
    if outer is not None or threading.current_thread() is not threading.main_thread():
        yield lambda: None if outer is None else outer.came
        return
    answer = _Answer()
    answer.install()
    try:
        yield lambda: answer.came
    finally:
        answer.restore()


def end_lanes() -> None:
    """Kill all child processes if the system lists them; otherwise lanes end by themselves."""
    from hwprofiles.other_use import own_processes

    for pid in own_processes()[1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def with_default_destination(args: Sequence[str], *, takes_files: bool = False) -> list[str]:
    """Insert `-` after a `--json` without a value, since Typer has no options with an optional value.

    For a verb that `takes_files` (any number), a file after `--json` is an input and no value, or else it would be
    overwritten; unless this verb wrote it earlier: such files it cannot read, so they are outputs.
    """
    complete: list[str] = []
    for place, arg in enumerate(args):
        complete.append(arg)
        following = next(iter(args[place + 1 : place + 2]), "--")
        is_option = following != STDOUT and following.startswith("-")
        if arg == "--json" and (is_option or (takes_files and _is_input(Path(following)))):
            complete.append(STDOUT)
    return complete


_RESULTS: Final = (b'{\n  "curves": ', b'{\n  "num_files": ')
"""How the JSON results of the verbs that take any number of files begin: `import` and `profiles lint`."""


def _is_input(path: Path) -> bool:
    """Return whether a path is a folder, or a file that is not the result of such a verb."""
    if not path.is_file():
        return path.is_dir()
    with suppress(OSError), path.open("rb") as file:
        return not file.read(max(map(len, _RESULTS))).startswith(_RESULTS)
    return True


def write_json(data: dict[str, Any], destination: str | None, *, relative: Sequence[str] = ()) -> bool:
    """Write `data` to the destination of `--json`; return whether stdout is free for text.

    `relative` names the entries that are paths; in a file they become relative to its folder.
    """
    from mirrorsd.compare.numbers import json_text, path_from

    if destination is None:
        return True
    if destination == STDOUT:
        typer.echo(json_text(data).encode(), nl=False)  # JSON is UTF-8, whatever the terminal's encoding
        return False
    from decoding.yaml_file import write_atomically

    path = Path(destination)
    moved = {name: path_from(path.parent, Path(data[name])) for name in relative}
    write_atomically(path, json_text(data | moved))
    return True
