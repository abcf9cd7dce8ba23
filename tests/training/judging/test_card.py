import pytest

from runtime.drafters.shipped import find_drafter, shipped_names
from training.judging.card import TEXT_FILE, read_card


@pytest.mark.parametrize("name", shipped_names())
def test_the_text_of_a_shipped_card_is_what_its_figures_give(name) -> None:
    folder = find_drafter(name)
    assert (folder / TEXT_FILE).read_text(encoding="utf-8") == read_card(folder).text
