"""Where the command writes for people: results on stdout, progress and messages on stderr.

On a terminal lines are wrapped between words. In a file or a pipe they stay whole, and tables are as wide as need be.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WRONG_INPUT = 2
"""Exit status when something the user gave is wrong, as for a wrong option."""
INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + SIGINT, by the shell's convention."""
_WIDE = 200


@cache
def results() -> Console:
    """Stdout, for what was asked for."""
    return _console(stderr=False)


@cache
def messages() -> Console:
    """Stderr, for everything else."""
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


def say_next(*words: object) -> None:
    """Print the command that comes next."""
    say_command("Next", shlex.join(["mirrorsd", *map(str, words)]))


def say_command(what_for: str, command: str) -> None:
    """Print a command; it stays on one line, to be copied."""
    messages().print(f"{what_for}: [bold]{escaped(command)}[/]", soft_wrap=True)


def escaped(text: object) -> str:
    """Text that means itself: rich's markup in it is taken literally."""
    from rich.markup import escape

    return escape(str(text))


@contextmanager
def telling_what_was_saved(saved: list[str]) -> Iterator[None]:
    """On Ctrl-C report what is on disk by then, a sentence each that the caller appends as it goes."""
    from mirrorsd.cli.interrupts import answering_ctrl_c

    with answering_ctrl_c() as was_pressed:
        try:
            yield
        except BaseException as error:
            if not was_pressed() and not isinstance(error, KeyboardInterrupt):
                raise
            say(f"\nInterrupted. {escaped(' '.join(saved)) if saved else 'Nothing was written.'}")
            raise typer.Exit(INTERRUPTED) from error


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, emoji=False, highlight=False)
    if console.is_terminal:
        return console
    return Console(stderr=stderr, emoji=False, highlight=False, soft_wrap=True, width=_WIDE)
