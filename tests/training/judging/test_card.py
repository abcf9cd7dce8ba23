import pytest

from runtime.drafters.shipped import find_drafter, shipped_names
from runtime.storage.weight_folder import WEIGHTS_FILE
from training.judging.card import TEXT_FILE, read_card

TRAINED = [name for name in shipped_names() if (find_drafter(name) / WEIGHTS_FILE).is_file()]


@pytest.mark.parametrize("name", TRAINED)
def test_the_text_of_a_shipped_card_is_what_its_figures_give(name):
    folder = find_drafter(name)
    assert (folder / TEXT_FILE).read_text(encoding="utf-8") == read_card(folder).text
