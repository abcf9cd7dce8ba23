"""The reference back end works out where rows are once for all their layers, and never takes other rows for them."""

import weakref

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


def test_where_rows_are_is_worked_out_once_for_all_slices(decoder, monkeypatch):
    backend, asked = EagerBackend(decoder), []
    text, own = text_of(backend, 3), decoder.row_places
    monkeypatch.setattr(decoder, "row_places", lambda *args, **given: asked.append(given) or own(*args, **given))
    passed(backend, text, (1, 2), torch.arange(3, 5), cuts=(1, 2, 3))
    assert len(asked) == 1
    passed(backend, text, (1, 2), torch.arange(3, 5))
    assert len(asked) == 2


def test_rows_that_wait_between_slices_are_not_taken_for_others(decoder):
    """A prefix waits for its suffix while another text is read with the same weights, as anchors are."""
    backend = EagerBackend(decoder)
    text, other = text_of(backend, 7), text_of(backend, 4)
    expected = passed(backend, text, (5, 6), torch.arange(7, 9))
    positions = torch.arange(7, 9)
    x_BTD = backend.run_layers(backend.embedding(torch.tensor([(5, 6)])), 0, 2, positions=positions, cache=text)
    passed(backend, other, (8, 8, 8), torch.arange(4, 7))
    found = backend.run_layers(x_BTD, 2, backend.config.num_layers, positions=positions, cache=text)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("cuts", [(), (2,)])
def test_a_text_is_let_go_once_its_rows_have_passed_all_layers(decoder, cuts):
    backend = EagerBackend(decoder)
    text = text_of(backend, 3)
    passed(backend, text, (1, 2), torch.arange(3, 5), cuts=cuts)
    is_kept = weakref.ref(text)
    del text
    assert is_kept() is None
