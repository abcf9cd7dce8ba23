"""Finds the commands that are printed: in pages, in helps, and in what verbs say."""

import html
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import typer

from mirrorsd.cli.app import app
from mirrorsd.cli.console import with_default_destination

ROOT = Path(__file__).parents[2]
COMMAND = typer.main.get_command(app)
USAGE_ERROR = typer.BadParameter.__base__


@dataclass(frozen=True)
class Printed:
    """A command as somebody reads it, and where."""

    text: str
    where: str

    @property
    def words(self):
        return tuple(shlex.split(self.text, comments=True))

    def __str__(self):
        return f"{self.where}: {self.text}"


def leaves(command=COMMAND, path=()):
    """Every verb with the words that call it."""
    below = getattr(command, "commands", {})
    for name, inner in below.items():
        yield from leaves(inner, (*path, name))
    if not below:
        yield path, command


def verb_of(words):
    """The longest beginning of `mirrorsd ...` that names a verb or a group of them, and the command behind it."""
    path, command = [], COMMAND
    for word in words[1:]:
        if word not in getattr(command, "commands", {}):
            break
        path.append(word)
        command = command.commands[word]
    return tuple(path), command


def is_understood(words):
    """Whether the words are a whole command: its verb is there, and all that it needs."""
    path, command = verb_of(words)
    if hasattr(command, "commands"):
        return tuple(words[1:]) in {("--version",), ("--help",), (*path, "--help")}
    arguments = with_default_destination(list(words[len(path) + 1 :]))
    try:
        command.make_context(path[-1], arguments)
    except typer.Exit:
        return True
    except USAGE_ERROR:
        return False
    return True


def is_mention(words):
    """Whether a verb is spoken of and no more."""
    path, _ = verb_of(words)
    return tuple(words[1:]) == path


def of_the_help():
    """The example of every verb and of every group of verbs."""
    groups = [command for command in COMMAND.commands.values() if hasattr(command, "commands")]
    for command in [*groups, COMMAND, *(leaf for _, leaf in leaves())]:
        for text in re.findall(r"\[bold\](mirrorsd.*?)\[/\]", command.epilog or ""):
            yield Printed(text, "help")


def of_a_page(path):
    """Commands of a page's code, in order: lines of blocks, and what stands between backticks."""
    text = path.read_text(encoding="utf-8")
    found = []
    for block in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if block[1] in ("", "sh", "bash", "console"):
            code = block[2].replace("\\\n", "  ")
            lines = re.finditer(r"^(?:\$ )?((?:mirrorsd|make) .*)$", code, re.MULTILINE)
            found += [(block.start(2) + line.start(), line[1]) for line in lines]
    found += [(one.start(), " ".join(one[1].split())) for one in re.finditer(r"`(mirrorsd [^`]*)`", text)]
    return [Printed(command, path.name) for _, command in sorted(found)]


def of_an_output(text, where):
    """Commands that a verb prints as the next step, or names."""
    lines = re.findall(r"^(?!\s*Usage:)[^`\n]*?: (mirrorsd .*)$", text, re.MULTILINE)
    return [Printed(command, where) for command in [*lines, *re.findall(r"`(mirrorsd [^`\n]*)`", text)]]


def of_a_report(path):
    """Commands on an HTML page, for which it has a button to copy."""
    found = re.findall(r"<code>(mirrorsd .*?)</code>", path.read_text(encoding="utf-8"))
    return [Printed(html.unescape(command), path.name) for command in found]
