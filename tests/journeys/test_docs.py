"""Every page of the docs, from top to bottom in an empty folder; training has a test of its own."""

import pytest

from tests.journeys.page_walk import PageWalk, walkable, write_shown_files
from tests.journeys.printed import ROOT, of_a_page

PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "training.md"]
COMMANDS = {page.name: walkable(of_a_page(page)) for page in PAGES}


@pytest.fixture(scope="module")
def page_walks(walk):
    write_shown_files(ROOT / "docs" / "platforms.md", walk.folder, "my-file.yaml")
    return {name: PageWalk(walk, commands) for name, commands in COMMANDS.items()}


@pytest.mark.parametrize("printed", [one for page in COMMANDS.values() for one in page], ids=str)
def test_a_command_of_a_page_works(printed, page_walks):
    page_walks[printed.where](printed)


def test_all_that_was_printed_on_the_way_works(walk):
    for done in list(walk.done.values()):
        walk.follow(done)
