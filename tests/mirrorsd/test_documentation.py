"""What the documentation shows is there; that it works is shown by `tests/journeys`."""

import re
import shlex
from pathlib import Path

import pytest
import typer

import mirrorsd
from mirrorsd.cli.app import app
from mirrorsd.cli.json_option import with_default_destination

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = typer.main.get_command(app)


def leaves(command, path=()):
    """Every command that does something, with the words that call it."""
    below = getattr(command, "commands", {})
    for name, inner in below.items():
        yield from leaves(inner, (*path, name))
    if not below:
        yield path, command


LEAVES = dict(leaves(COMMAND))


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_examples_in_the_help_are_understood(path):
    command = LEAVES[path]
    words = shlex.split(re.search(r"Example: \[bold\](.*)\[/\]", command.epilog).group(1))
    assert tuple(words[: len(path) + 1]) == ("mirrorsd", *path)
    arguments = with_default_destination(words[len(path) + 1 :])
    assert command.make_context(path[-1], arguments).params


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_verbs_and_options_that_pages_mention_exist(page):
    text = page.read_text(encoding="utf-8")
    code = " ".join(re.findall(r"`[^`\n]+`", text))
    verbs = set(re.findall(r"mirrorsd (?:train )?([a-z]+)\b", code))
    assert verbs <= set(COMMAND.commands) | set(COMMAND.commands["train"].commands)
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    understood = {option for command in LEAVES.values() for parameter in command.params for option in parameter.opts}
    assert options <= understood | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


def python_blocks():
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.DOTALL)


def test_every_name_on_the_python_page_is_public():
    used = set(re.findall(r"mirrorsd\.(\w+)", "".join(python_blocks())))
    assert used <= set(dir(mirrorsd))
