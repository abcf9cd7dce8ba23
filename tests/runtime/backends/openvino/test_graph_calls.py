"""Graphs are told once where the keys of a text are, however often texts take turns."""

import gc
import weakref

import numpy as np
import pytest

from runtime.backends.openvino.graph_calls import _MOST_MEMORIES
from tests.runtime.reading import new_backend, prepare, read

SIZES = {"num_slots": 60, "num_prompt": 1, "rows": (1,), "prompt_segments": ()}


@pytest.fixture(scope="module")
def backend():
    return new_backend()


def memories_of(backend):
    return [call._requests for call in backend._graphs._calls.values()]


def requests_of(backend):
    """All requests, of every graph."""
    calls = memories_of(backend)
    return [one.request for memories in calls for bound in memories.values() for one in bound.values()]


def taking_turns(backend, texts, ids_KT):
    """Logits [K, T, V] of texts that are read one token each in turn."""
    found = [[] for _ in texts]
    for text in texts:
        text.start(ids_KT.shape[1])
    for place in range(ids_KT.shape[1]):
        for text, ids_T, own in zip(texts, ids_KT, found, strict=True):
            x = backend.embedding(ids_T[None, place : place + 1])
            x = backend.run_layers(x, 0, 4, positions=np.arange(place, place + 1), cache=text)
            text.set_length(place + 1)
            own.append(backend.logits(x)[0])
    return [np.concatenate(own) for own in found]


@pytest.mark.parametrize("num_texts", [2, _MOST_MEMORIES + 1])
def test_texts_that_take_turns_say_what_they_say_alone(backend, num_texts):
    ids_KT = np.random.default_rng(0).integers(backend.config.vocab_size, size=(num_texts, 12))
    alone = [read(backend, [1] * 12, ids=ids_T) for ids_T in ids_KT]
    found = taking_turns(backend, [backend.new_text() for _ in range(num_texts)], ids_KT)
    assert all(np.array_equal(one, other) for one, other in zip(found, alone, strict=True))
    assert max(map(len, memories_of(backend))) <= _MOST_MEMORIES


def test_every_text_keeps_its_request_while_others_are_read(backend):
    texts, ids_KT = [backend.new_text() for _ in range(2)], np.arange(8).reshape(2, 4)
    taking_turns(backend, texts, ids_KT)
    before = requests_of(backend)
    taking_turns(backend, texts, ids_KT)
    assert [*map(id, requests_of(backend))] == [*map(id, before)]


def test_every_part_of_branches_keeps_its_request_while_others_are_called():
    num_branches = 2 * _MOST_MEMORIES
    backend = prepare(new_backend(), **SIZES, num_branches=num_branches, least_branches=2)
    branches = backend.new_branches(num_branches)
    branches.start(60)
    parts = [slice(first, num_branches) for first in range(num_branches - 1)]

    def call_all():
        for part in parts:
            count = part.stop - part.start
            rows = branches.rows(part, [[5]] * count)
            x = backend.embedding(np.arange(count)[:, None])
            backend.run_layers(x, 0, 4, positions=rows.positions_RT, cache=rows)

    call_all()
    before = requests_of(backend)
    assert len(before) >= len(parts)
    call_all()
    assert [*map(id, requests_of(backend))] == [*map(id, before)]


def test_branches_let_go_of_the_memory_of_those_before_them():
    backend = prepare(new_backend(), **SIZES, num_branches=3)

    def called():
        """Slots of branches that have been called."""
        branches = backend.new_branches(3)
        branches.start(60)
        rows = branches.rows(slice(3), [[5]] * 3)
        x = backend.embedding(np.array([[1], [2], [3]]))
        backend.run_layers(x, 0, 4, positions=rows.positions_RT, cache=rows)
        return weakref.ref(rows.call.buffer.slots)

    first, second = called(), called()
    gc.collect()
    assert first() is None
    assert second() is not None, "the next call is likely to be of these"
