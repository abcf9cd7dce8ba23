"""README, docs and the examples of every `--help`, walked from top to bottom in an empty folder."""

import pytest

from tests.journeys.page_walk import PageWalk, walkable, write_shown_files
from tests.journeys.printed import ROOT, of_a_page, of_the_help

PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "training.md")]
COMMANDS = {page.name: walkable(of_a_page(page)) for page in PAGES}
EXAMPLES = walkable([one for one in of_the_help() if one.words[1] != "train"])


@pytest.fixture(scope="module")
def page_walks(walk):
    write_shown_files(ROOT / "docs" / "platforms.md", walk.folder, "my-file.yaml")
    return {name: PageWalk(walk, commands) for name, commands in COMMANDS.items()}


@pytest.mark.parametrize("printed", [one for page in COMMANDS.values() for one in page], ids=str)
def test_a_command_of_a_page_works(printed, page_walks):
    page_walks[printed.where](printed)


@pytest.mark.parametrize("printed", EXAMPLES, ids=str)
def test_an_example_of_the_help_works(printed, walk):
    PageWalk(walk, EXAMPLES, in_order=False)(printed)


def test_all_that_was_printed_on_the_way_works(walk):
    for done in list(walk.done.values()):
        walk.follow(done)
