"""Where the command writes: results on stdout or as JSON, progress and messages on stderr, files tried before the work.

On a terminal lines are wrapped between words. In a file or a pipe they stay whole, and tables are as wide as need be.
Ctrl-C and other signals to end are obeyed at once.
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
"""Exit status when something the user gave is wrong, as for a wrong option."""
_BY_A_SIGNAL = 128
"""Exit status after a signal, less its number, by the shell's convention."""
INTERRUPTED = _BY_A_SIGNAL + signal.SIGINT
"""Exit status after Ctrl-C."""
_WIDE = 240
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All of ASCII and Latin-1 but for tabs and ends of lines."""


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
    """Print the command that comes next."""
    say_command("Next", shlex.join(["mirrorsd", *map(str, words)]))


def say_command(what_for: str, command: str) -> None:
    """Print a command; it stays on one line, to be copied."""
    messages().print(f"{what_for}: [bold]{escaped(command)}[/]", soft_wrap=True)


def say_whose(profile: Profile | None, record: AcceptanceRecord | None = None, *, runs: bool = False) -> list[str]:
    """Warn of a profile or a record that another machine made, and return the sentences.

    `runs` is whether anything runs on this machine.
    """
    from hwprofiles.host import differences

    warnings = []
    if profile is not None and (found := differences(profile.host)) is not None:
        effect = ": what is predicted is of that machine, what is measured of this one" if runs else ""
        warnings.append(f"The profile is of another machine ({found}){effect}.")
    if record is not None and record.host is not None and (found := differences(record.host)) is not None:
        effect = ": texts may differ, and rounds with them" if runs else ""
        warnings.append(f"The record was made on another machine ({found}){effect}.")
    for warning in warnings:
        say(f"[yellow]{escaped(warning)}[/]")
    return warnings


def escaped(text: object) -> str:
    """Return text whose square brackets rich prints as they are, instead of taking them for markup."""
    from rich.markup import escape

    return escape(str(text))


@contextmanager
def telling_what_was_saved(saved: list[str]) -> Iterator[None]:
    """Tell on Ctrl-C what is on disk by then: sentences that the caller appends to `saved` as it goes."""
    with answering_signals() as which_came:
        try:
            yield
        except BaseException as error:
            number = which_came()
            if number is None and not isinstance(error, KeyboardInterrupt):
                raise
            say(f"\nInterrupted. {escaped(' '.join(saved)) if saved else 'Nothing was written.'}")
            raise typer.Exit(INTERRUPTED if number is None else _BY_A_SIGNAL + number) from error


def harmless(text: str) -> str:
    """Replace characters that a terminal obeys: names, prompts and errors may come from anywhere."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console
    from rich.segment import Segment

    class Harmless(Console):
        """Its own codes for colours and cursor are all that a terminal gets to obey."""

        def render(self, *args: Any, **options: Any) -> Iterator[Segment]:
            for text, style, control in super().render(*args, **options):
                yield Segment(text if control else harmless(text), style, control)

    console = Harmless(stderr=stderr, emoji=False, highlight=False)
    if console.is_terminal:
        return console
    return Harmless(stderr=stderr, emoji=False, highlight=False, soft_wrap=True, width=_WIDE)


STOPPING: Final = "Stopping."
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""From the keyboard, from another program, and from a terminal that was closed."""
_ONCE_S: Final = 1.0
"""A signal that comes again so soon is the same one: `timeout` sends its own to a process, and to the group of it."""


@contextmanager
def answering_signals() -> Iterator[Callable[[], int | None]]:
    """While the body runs, a signal says so, ends the processes of all lanes, and raises `KeyboardInterrupt`.

    Lanes finish their work before they end by themselves, and whoever waits for one would wait for that. What an
    ended lane raises on the way out may hide the `KeyboardInterrupt`, so the function that is given tells which
    signal there was, if any. A later one only does what it usually does. Ignored ones stay ignored.
    """
    came: list[int] = []
    came_s = 0.0
    usual = {number: signal.getsignal(number) for number in _SIGNALS}
    answered = [number for number in _SIGNALS if usual[number] in (signal.default_int_handler, signal.SIG_DFL)]
    if threading.current_thread() is not threading.main_thread():
        answered = []

    def restore() -> None:
        for number in answered:
            signal.signal(number, usual[number])

    def answer(number: int, _frame: object) -> None:
        nonlocal came_s
        if came:
            if time.monotonic() - came_s >= _ONCE_S:
                restore()
                signal.raise_signal(number)
            return
        came_s = time.monotonic()  # first: another signal may come in between
        came.append(number)
        with suppress(OSError):  # no console: the interrupted code may be about to write itself, or it is gone
            os.write(2, f"\n{STOPPING}\n".encode())
        end_lanes()
        raise KeyboardInterrupt

    for number in answered:
        signal.signal(number, answer)
    try:
        yield lambda: next(iter(came), None)
    finally:
        restore()


def end_lanes() -> None:
    """End all processes that this one has started, where the system tells which; elsewhere they end by themselves."""
    from hwprofiles.other_use import own_processes

    for pid in own_processes()[1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def with_default_destination(args: Sequence[str], *, takes_files: bool = False) -> list[str]:
    """Give a `--json` that no value follows the value `-`: Typer's options cannot have an optional one.

    Of a verb that `takes_files`, as many as there are, a file that follows is one of them, and no value: it would be
    written over. What such a verb wrote before it does not read.
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
"""How the JSON of verbs that take any number of files begins: `import` and `profiles lint`."""


def _is_input(path: Path) -> bool:
    """Return whether a word names a file that is there, but for what such a verb has written, or a folder."""
    if not path.is_file():
        return path.is_dir()
    with suppress(OSError), path.open("rb") as file:
        return not file.read(max(map(len, _RESULTS))).startswith(_RESULTS)
    return True


def write_json(data: dict[str, Any], destination: str | None, *, relative: Sequence[str] = ()) -> bool:
    """Write `data` to where `--json` points, its `relative` paths as seen from there; return whether stdout is free."""
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
