"""Where the command writes for people: results on stdout, progress and messages on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WRONG_INPUT = 2
"""Exit status when something the user gave is wrong, as for a wrong option."""
_WIDE = 200
INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + SIGINT, by the shell's convention."""


@cache
def results() -> Console:
    """Stdout, for what was asked for; in a file or a pipe tables get all the room they want."""
    from rich.console import Console

    console = Console(emoji=False, highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(emoji=False, highlight=False, soft_wrap=True, width=_WIDE)


@cache
def messages() -> Console:
    """Stderr, for everything said along the way."""
    from rich.console import Console

    return Console(stderr=True, emoji=False, highlight=False, soft_wrap=True)


def show(renderable: RenderableType) -> None:
    """Print a result: text with rich's markup, or a table."""
    results().print(renderable)


def say(renderable: RenderableType) -> None:
    """Print a message: text with rich's markup, or a table."""
    messages().print(renderable)


def escaped(text: object) -> str:
    """Text that means itself: rich's markup in it is taken literally."""
    from rich.markup import escape

    return escape(str(text))


@contextmanager
def telling_what_was_saved(saved: list[str]) -> Iterator[None]:
    """On Ctrl-C say what is on disk by then, and end with `INTERRUPTED`.

    Args:
        saved: one sentence per thing saved; the caller appends as it goes.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        say(f"\nInterrupted. {escaped(' '.join(saved)) if saved else 'Nothing was written.'}")
        raise typer.Exit(INTERRUPTED) from error
