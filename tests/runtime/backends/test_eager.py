"""The reference back end says the same of rows in slices of layers and in one go."""

import pytest
import torch

from runtime.backends.eager import EagerBackend
from runtime.models.masks import tree_rows
from tests.tiny_models import tiny_target

PARENTS = (-1, -1, 0, 0)


@pytest.fixture
def decoder():
    return tiny_target()


def passed(backend, text, ids, positions, mask=None, cuts=()):
    """Hidden states of rows after all layers, in one go or cut after some."""
    x_BTD, done = backend.embedding(torch.tensor([ids])), 0
    for stop in (*cuts, backend.config.num_layers):
        x_BTD, done = backend.run_layers(x_BTD, done, stop, positions=positions, mask=mask, cache=text), stop
    return x_BTD


def text_of(backend, length):
    text = backend.new_text()
    text.start(40)
    passed(backend, text, range(length), torch.arange(length))
    text.advance(length)
    return text


@pytest.mark.parametrize("is_tree", [False, True])
def test_layers_run_in_slices_say_the_same_bit_by_bit(decoder, is_tree):
    backend = EagerBackend(decoder)
    text, ids = text_of(backend, 7), (3, 9, 4, 1, 8)
    positions, mask = torch.arange(7, 12), None
    if is_tree:
        tree = tree_rows(PARENTS)
        positions, mask = tree.depths + 7, tree.mask(7)
    whole = passed(backend, text, ids, positions, mask)
    for cuts in ((1,), (1, 2), (2, 3)):
        assert torch.equal(passed(backend, text, ids, positions, mask, cuts), whole)
