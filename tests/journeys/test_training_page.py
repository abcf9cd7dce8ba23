"""From a target's text to its drafters, as the page on training and the help tell it."""

import pytest

from tests.journeys.page_walk import PageWalk, walkable, write_shown_files
from tests.journeys.printed import ROOT, of_a_page, of_the_help

PAGE = ROOT / "docs" / "training.md"
COMMANDS = walkable([*of_a_page(PAGE), *(one for one in of_the_help() if one.words[1] == "train")])


@pytest.fixture(scope="module")
def page_walk(walk):
    write_shown_files(PAGE, walk.folder, "my-draft.yaml")
    return PageWalk(walk, COMMANDS, in_order=False)


@pytest.mark.parametrize("printed", COMMANDS, ids=str)
def test_a_command_works(printed, page_walk):
    page_walk(printed)


def test_all_that_was_printed_on_the_way_works(walk, page_walk):
    page_walk(COMMANDS[0])
    assert [one for done in list(walk.done.values()) for one in walk.follow(done)]
