"""Walks a page from top to bottom: files that it shows are written, and what a command reads was made before."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.journeys.printed import Printed, is_mention, is_understood
from tests.journeys.walk import FILLED, Done, Walk, inputs, outputs, why_not


@dataclass
class PageWalk:
    """The commands of pages, in a user's folder.

    Attributes:
        walk: what runs them.
        commands: in their order.
        in_order: whether a command may need only what earlier ones made; examples of the help have no order.
    """

    walk: Walk
    commands: list[Printed]
    in_order: bool = True
    done: dict[Printed, Done] = field(default_factory=dict)

    def __call__(self, printed: Printed) -> Done:
        """Run a command, after those that make what it reads."""
        reason = why_not(printed)
        if reason is not None:
            pytest.skip(f"{printed.text}: {reason}")
        words = tuple(FILLED.get(word, word) for word in printed.words)
        for path in inputs(words):
            if not (self.walk.folder / path).exists():
                self(self._maker_of(path, printed))
        self.done[printed] = self.walk.quickly(printed)
        return self.done[printed]

    def _maker_of(self, path: str, printed: Printed) -> Printed:
        others = self.commands[: self.commands.index(printed)] if self.in_order else self.commands
        for other in reversed(others):
            if other != printed and any(path == made or path.startswith(f"{made}/") for made in outputs(other.words)):
                return other
        raise AssertionError(f"{printed}: nothing before it makes {path}")


def walkable(found: list[Printed]) -> list[Printed]:
    """Whole commands, once each; a verb that is only spoken of is none, and anything else is refused when it is run."""
    return [one for one in dict.fromkeys(found) if is_understood_here(one) or not is_mention(one.words)]


def is_understood_here(printed: Printed) -> bool:
    return printed.words[0] != "mirrorsd" or is_understood(printed.words)


def write_shown_files(page: Path, folder: Path, name: str) -> None:
    """Save the YAML that a page shows under the name that its commands call it by."""
    [shown] = re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[:1]
    (folder / name).write_text(shown)
