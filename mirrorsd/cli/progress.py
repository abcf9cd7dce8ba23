"""A bar on stderr: what is happening, how far it is, and how long it will still take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from mirrorsd.cli.console import messages


class Report(Protocol):
    """Called along the way with the name of the step under way and the share that is done, 0 to 1."""

    def __call__(self, step: str, share: float, /) -> None:
        """Take note."""
        ...


@contextmanager
def task(title: str) -> Iterator[Report]:
    """Show a bar while the body runs; it is told how far it is through the function it is given."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=messages(), transient=True) as progress:
        row = progress.add_task(title, total=1.0)

        def report(step: str, share: float, /) -> None:
            progress.update(row, description=f"{title}: {step}", completed=share)

        yield report
