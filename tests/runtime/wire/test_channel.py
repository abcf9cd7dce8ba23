"""What goes in at one end comes out at the other, whole, in order, or not at all."""

import socket
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.messages import Candidates, ExitSignal, Verdict, Window
from runtime.wire.channel import Block, Channel, Message
from runtime.wire.tensor_block import to_block, to_tensor
from runtime.wire.wire_messages import (
    read_signal,
    read_verdict,
    read_window,
    write_signal,
    write_verdict,
    write_window,
)


@pytest.fixture
def ends():
    pair = [Channel(end) for end in socket.socketpair()]
    yield pair
    for end in pair:
        end.close()


def through(message):
    near, far = [Channel(end) for end in socket.socketpair()]
    near.send(message.fields, message.blocks)
    received = far.receive(timeout_s=5)
    near.close()
    far.close()
    return received


def test_messages_arrive_in_order_with_their_arrays(ends) -> None:
    near, far = ends
    block = Block("int32", (2, 1), b"\1\0\0\0\2\0\0\0")
    near.send({"op": "first"}, (block, Block("float64", (0, 3), b"")))
    near.send({"op": "second", "values": [1.5, None, "é"]})
    assert far.receive() == Message({"op": "first"}, (block, Block("float64", (0, 3), b"")))
    assert far.receive() == Message({"op": "second", "values": [1.5, None, "é"]}, ())
    assert not far.has_message()


def test_an_array_larger_than_any_buffer_arrives_whole(ends) -> None:
    near, far = ends
    block = Block("int32", (3_000_000,), bytes(range(250)) * 48_000)
    sender = threading.Thread(target=near.send, args=({}, (block,)))
    sender.start()
    assert far.receive(timeout_s=30).blocks == (block,)
    sender.join()


def test_half_a_message_is_no_message() -> None:
    raw, end = socket.socketpair()
    far = Channel(end)
    near, copy = socket.socketpair()
    Channel(near).send({"op": "whole"})
    sent = copy.recv(1000)
    raw.sendall(sent[:7])
    assert not far.has_message()
    with pytest.raises(TimeoutError):
        far.receive(timeout_s=0.01)
    raw.sendall(sent[7:])
    assert far.has_message()
    assert far.receive().fields == {"op": "whole"}
    for each in (raw, near, copy):
        each.close()
    far.close()


def test_the_end_of_the_other_side_is_seen_behind_its_last_message(ends) -> None:
    near, far = ends
    near.send({"op": "last"})
    near.close()
    assert far.has_message()
    assert far.receive().fields == {"op": "last"}
    with pytest.raises(EOFError):
        far.has_message()
    with pytest.raises(EOFError):
        far.receive()
    with pytest.raises(EOFError):
        far.send({"op": "answer"})


def test_a_receiver_that_takes_nothing_is_noticed(ends) -> None:
    near, _ = ends
    with pytest.raises(TimeoutError):
        near.send({}, (Block("int32", (2_500_000,), bytes(10_000_000)),), timeout_s=0.01)


ids = st.integers(0, 150_000)
windows = st.builds(
    lambda tokens, num_alternatives, distributions: Window(
        tuple(tokens),
        tuple(tuple(range(token, token + num_alternatives)) for token in tokens) if num_alternatives else (),
        tuple(
            Candidates((token, token + 1), (share, 1 - share))
            for token, share in zip(tokens, distributions, strict=False)
        ),
    ),
    st.lists(ids, max_size=8),
    st.integers(0, 3),
    st.lists(st.floats(0, 1), min_size=8, max_size=8) | st.just([]),
)


tree_windows = st.lists(ids, min_size=1, max_size=20).map(
    lambda tokens: Window(tuple(tokens), parents=tuple(token % (place + 1) - 1 for place, token in enumerate(tokens)))
)


@given(windows | tree_windows)
def test_windows_survive_exactly(window) -> None:
    assert read_window(through(write_window(window))) == window


@given(st.lists(st.lists(ids, min_size=2, max_size=2), min_size=1, max_size=5), st.booleans())
def test_exit_signals_survive(rows, with_features) -> None:
    log_probs = tuple((-0.5 * index, -2.25) for index, _ in enumerate(rows))
    features = Block("bfloat16", (len(rows), 1), b"ab" * len(rows)) if with_features else None
    signal = ExitSignal(tuple(map(tuple, rows)), log_probs, features)
    assert read_signal(through(write_signal(signal))) == signal


@given(
    st.integers(0, 16),
    ids,
    st.none() | st.just(Block("float32", (1, 1), b"abcd")),
    st.lists(st.integers(0, 63)),
    st.none() | tree_windows | st.just(Window(())),
)
def test_verdicts_survive(num_accepted, next_token, features, path, window) -> None:
    verdict = Verdict(num_accepted, next_token, features, tuple(path), window)
    assert read_verdict(through(write_verdict(verdict))) == verdict


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (1,)])
def test_tensors_survive_bit_by_bit(dtype, shape) -> None:
    tensor = (torch.randn(*shape) * 100).to(dtype)
    found = to_tensor(through(Message({}, (to_block(tensor),))).blocks[0])
    assert found.dtype == dtype
    assert torch.equal(found, tensor)


def test_a_view_crosses_as_what_it_shows() -> None:
    tensor = torch.arange(12.0).view(3, 4).t()
    assert torch.equal(to_tensor(to_block(tensor)), tensor)
