"""Sequences and branches in static memory say what the same text says alone, by captured and by compiled calls."""

from functools import cache

import numpy as np
import pytest
import torch

from runtime.backends.backend import segments_between, tree_rows
from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.backends.cuda.captured_calls import GPU, SPARE
from runtime.backends.eager import EagerBackend
from runtime.backends.lane_device import Device
from tests.runtime.reading import compiled, prepare
from tests.tiny_models import VOCAB_SIZE, tiny_target

pytestmark = pytest.mark.usefixtures("npu_on_cpu")
FIRST_LIMIT = GPU.num_slots(0) - SPARE
"""KV positions within the smallest number that a captured call looks at."""
IDS = torch.randint(VOCAB_SIZE, (FIRST_LIMIT + 100,), generator=torch.Generator().manual_seed(1))
FORMS = ["captured", "CPU float32", "CPU bfloat16", "CPU int8", "CPU int4", "NPU float32"]
WIDE = pytest.mark.parametrize("form", ["captured", "CPU float32", "NPU float32"])
"""Where results are compared in float32, to a tolerance."""
NUM_LAYERS = 4


@cache
def backend_of(form):
    decoder = tiny_target(num_layers=NUM_LAYERS, max_position=400)
    if form == "captured":
        return CudaBackend(decoder, device="cpu")
    device, dtype = form.split()
    return prepare(compiled(decoder, dtype, f"openvino:{device}"))


def same(form, one, other):
    """To the last bit where calls are exact, to a tolerance elsewhere."""
    return torch.equal(one, other) if form.startswith("CPU") else torch.allclose(one, other, atol=1e-4)


class Reader:
    """Feeds one back end rows of sequences and branches."""

    def __init__(self, form):
        self.backend = backend_of(form)

    def feed(self, ids, cache, positions, mask=None):
        x, positions = self.backend.embedding(np.array(ids)), np.asarray(positions)
        states = self.backend.run_layers(x, 0, NUM_LAYERS, positions=positions, mask=mask, cache=cache)
        return torch.as_tensor(states)

    def text(self, ids=()):
        """A sequence that has been read in one call, and the states of its rows."""
        text, states = self.backend.new_text(), None
        text.start(400)
        if len(ids):
            states = self.feed([list(ids)], text, range(len(ids)))[0]
            text.advance(len(ids))
        return text, states

    def alone(self, ids):
        """The last row of a sequence of its own."""
        return self.text(ids)[1][-1]

    def branches(self, count):
        branches = self.backend.new_branches(count)
        branches.start(400)
        return branches


@pytest.fixture
def reader(form):
    return Reader(form)


def prompt(length):
    return IDS[:length].tolist()


@pytest.mark.parametrize("form", FORMS)
def test_a_text_that_is_rolled_back_goes_on_as_if_nothing_had_been_after_it(reader, form):
    text, _ = reader.text(prompt(10))
    reader.feed([IDS[20:33].tolist()], text, range(10, 23))
    text.set_length(10)
    found = reader.feed([IDS[10:14].tolist()], text, range(10, 14))
    assert same(form, found[0, -1], reader.alone(prompt(14)))


@pytest.mark.parametrize("form", FORMS)
def test_a_text_is_not_told_from_what_its_memory_held_before(reader, form):
    text, _ = reader.text()
    text.fill_random(390)
    text.start(400)
    found = reader.feed([prompt(8)], text, range(8))
    assert same(form, found[0, -1], reader.alone(prompt(8)))


@WIDE
def test_rows_of_a_tree_see_their_path(reader):
    """Every path of a tree, moved after the text, is what the path alone is."""
    tree, parents = [5, 6, 7, 8, 9], (-1, 0, 0, 2)
    rows = tree_rows(parents)
    text, _ = reader.text(prompt(20))
    found = reader.feed([tree], text, rows.depths + 20, rows.mask(20))[0]
    for path in ([0], [0, 1], [0, 1, 2], [0, 1, 3], [0, 1, 3, 4]):
        assert torch.allclose(found[path[-1]], reader.alone([*prompt(20), *(tree[row] for row in path)]), atol=1e-4)
    text.gather([21, 23, 24], 21)
    assert text.cursor == 24
    own, other = (
        torch.as_tensor(one.memory.slots)[..., :24, :] for one in (text, reader.text([*prompt(20), 5, 6, 8, 9])[0])
    )
    assert torch.allclose(own.float(), other.float(), atol=1e-2)


@pytest.mark.parametrize("length", [22, FIRST_LIMIT])
@pytest.mark.parametrize("form", FORMS)
def test_a_row_of_a_branch_continues_its_text(reader, form, length):
    """In the longer text branches stand on both sides of a limit, and memory grows under them."""
    (text, _), branches = reader.text(prompt(length)), reader.branches(3)
    branches.follow(text, num_final=length - 2, stop=length)
    starts, tokens = (length - 2, length, length - 1), ([3, 4], [5, 6], [7, 8])
    for step in range(2):
        rows = branches.rows(slice(0, 3), [[start + step] for start in starts])
        found = reader.feed([[own[step]] for own in tokens], rows, rows.positions_RT)
    for branch, (start, own) in enumerate(zip(starts, tokens, strict=True)):
        assert same(form, found[branch, 0], reader.alone([*prompt(start), *own]))
    some = branches.rows(slice(1, 3), [[length + 2], [length + 1]])
    reader.feed([[1], [2]], some, some.positions_RT)
    branches.give(0, length - 2, length, text)
    text.set_length(length)
    again = reader.feed([[9]], text, [length])[0, 0]
    assert same(form, again, reader.alone([*prompt(length - 2), 3, 4, 9]))


@pytest.mark.parametrize("form", FORMS)
def test_a_branch_goes_on_from_the_text_that_it_was_given(reader, form):
    """Others keep theirs, whichever is longer: on both sides of a limit."""
    branches, lengths = reader.branches(3), (22, FIRST_LIMIT + 3, 5)
    for branch, length in enumerate(lengths):
        branches.take(branch, length, reader.text(prompt(length))[0])
    rows = branches.rows(slice(0, 3), [[length] for length in lengths])
    found = reader.feed([[7], [8], [9]], rows, rows.positions_RT)
    for branch, (length, token) in enumerate(zip(lengths, (7, 8, 9), strict=True)):
        assert same(form, found[branch, 0], reader.alone([*prompt(length), token]))


@pytest.mark.parametrize("form", FORMS)
def test_branches_after_a_window_see_it(reader, form):
    (text, _), branches = reader.text(prompt(10)), reader.branches(2)
    branches.follow(text, num_final=10, stop=10)
    read_window(reader, [1, 2, 3], text, branches)
    rows = branches.rows(slice(0, 2), [[11], [13]])
    found = reader.feed([[4], [5]], rows, rows.positions_RT)
    for branch, ids in enumerate(([1, 4], [1, 2, 3, 5])):
        assert same(form, found[branch, 0], reader.alone([*prompt(10), *ids]))


def read_window(reader, window, text, branches):
    """Read a window after a text, and give it to all branches."""
    start = text.cursor
    reader.feed([window], text, range(start, start + len(window)))
    text.advance(len(window))
    branches.follow(text, num_final=start, stop=text.cursor)


@pytest.mark.parametrize("form", FORMS)
def test_branches_see_a_window_that_goes_on_in_larger_memory(reader, form):
    """No branch goes as far as the window, which ends behind the first limit of a CPU."""
    length, window = 219, [1, 2, 3, 4, 5, 6, 7, 8]
    assert len({Device.of_lane("openvino:CPU").num_slots(stop) for stop in (length + 2, length + 8)}) == 2
    (text, _), branches = reader.text(prompt(length)), reader.branches(2)
    branches.follow(text, num_final=length, stop=length)
    read_window(reader, window, text, branches)
    rows = branches.rows(slice(0, 2), [[length], [length + 1]])
    found = reader.feed([[20], [21]], rows, rows.positions_RT)
    for branch, ids in enumerate(([20], [1, 21])):
        assert same(form, found[branch, 0], reader.alone([*prompt(length), *ids]))
    rows = branches.rows(slice(0, 2), [[length + 1], [length + 2]])
    found = reader.feed([[22], [23]], rows, rows.positions_RT)
    for branch, ids in enumerate(([20, 22], [1, 21, 23])):
        assert same(form, found[branch, 0], reader.alone([*prompt(length), *ids]))


@pytest.mark.parametrize("is_tree", [False, True])
def test_layers_run_in_slices_say_the_same_bit_by_bit(is_tree):
    backend = EagerBackend(tiny_target())
    text = backend.new_text()
    text.start(40)

    def passed(ids, positions, mask=None, cuts=()):
        x_BTD = backend.embedding(torch.tensor([ids]))
        for start, stop in segments_between(*cuts, NUM_LAYERS):
            x_BTD = backend.run_layers(x_BTD, start, stop, positions=positions, mask=mask, cache=text)
        return x_BTD

    passed(range(7), torch.arange(7))
    text.advance(7)
    tree, ids = tree_rows((-1, -1, 0, 0)), (3, 9, 4, 1, 8)
    where = (tree.depths + 7, tree.mask(7)) if is_tree else (torch.arange(7, 12),)
    whole = passed(ids, *where)
    for cuts in ((1,), (1, 2), (2, 3)):
        assert torch.equal(passed(ids, *where, cuts=cuts), whole)
