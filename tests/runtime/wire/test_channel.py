"""What goes in at one end comes out at the other, whole, in order, or not at all."""

import socket
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from runtime.wire import channel, stops
from runtime.wire.channel import Block, Channel, Message, to_block, to_bytes, to_tensor
from runtime.wire.stops import Stops


@pytest.fixture
def ends():
    pair = [Channel(end) for end in socket.socketpair()]
    yield pair
    for end in pair:
        end.close()


def test_messages_arrive_in_order_with_their_arrays(ends):
    near, far = ends
    block = Block("int32", (2, 1), b"\1\0\0\0\2\0\0\0")
    near.send({"op": "first"}, (block, Block("float64", (0, 3), b"")))
    near.send({"op": "second", "values": [1.5, None, "é"]})
    assert far.receive() == Message({"op": "first"}, (block, Block("float64", (0, 3), b"")))
    assert far.receive() == Message({"op": "second", "values": [1.5, None, "é"]}, ())
    assert not far.has_message()


def test_an_array_larger_than_any_buffer_arrives_whole(ends):
    near, far = ends
    block = Block("int32", (3_000_000,), bytes(range(250)) * 48_000)
    sender = threading.Thread(target=near.send, args=({}, (block,)))
    sender.start()
    assert far.receive(timeout_s=30).blocks == (block,)
    sender.join()


def test_half_a_message_is_no_message(ends):
    near, far = ends
    sent = to_bytes({"op": "whole"})
    near._socket.sendall(sent[:7])
    assert not far.has_message()
    with pytest.raises(TimeoutError):
        far.receive(timeout_s=0.01)
    near._socket.sendall(sent[7:])
    assert far.has_message()
    assert far.receive().fields == {"op": "whole"}


def test_the_end_of_the_other_side_is_seen_after_its_last_message(ends):
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


@pytest.mark.parametrize(
    ("stopped_s", "is_there", "timeout_s"),
    [(60.0, False, 0.25), (60.0, True, 0.25), (60.0, False, None), (60.0, True, None), (0.0, False, 0.25)],
)
def test_time_in_which_this_process_was_stopped_is_not_waited_but_counted(
    ends, monkeypatch, stopped_s, is_there, timeout_s
):
    """As by Ctrl-Z, which stops the other end too: it answers once both go on, or has done so by then."""
    near, far = ends
    clock = iter((0.0, *[0.25 + stopped_s] * 3))

    def perf_counter():
        if ((now_s := next(clock)) > 60) != is_there:
            near._socket.sendall(to_bytes({"op": "late"}))
        return now_s

    seen = Stops()
    monkeypatch.setattr(channel, "STOPS", seen)
    for module in (channel, stops):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=perf_counter))
    if stopped_s:
        assert far.receive(timeout_s=timeout_s).fields == {"op": "late"}
        assert (seen.total_s, seen.until_s) == (pytest.approx(60.0), 60.25)
    else:
        with pytest.raises(TimeoutError):
            far.receive(timeout_s=timeout_s)
        assert seen.total_s == 0


def test_a_receiver_that_takes_nothing_is_noticed(ends):
    near, _ = ends
    with pytest.raises(TimeoutError):
        near.send({}, (Block("int32", (2_500_000,), bytes(10_000_000)),), timeout_s=0.01)


def test_a_receiver_that_takes_a_long_message_slowly_gets_all_of_it(ends):
    near, far = ends
    num_bytes, taken = 4_000_000, 0
    block = Block("int32", (num_bytes // 4,), bytes(num_bytes))
    send = threading.Thread(target=near.send, args=({}, (block,)), kwargs={"timeout_s": 1})
    send.start()
    while taken < num_bytes:
        time.sleep(0.02)
        taken += len(far._socket.recv(40_000))
    send.join()
    assert taken >= num_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (1,)])
def test_tensors_survive_bit_by_bit(ends, dtype, shape):
    near, far = ends
    tensor = (torch.randn(*shape) * 100).to(dtype)
    near.send({}, (to_block(tensor),))
    found = to_tensor(far.receive(timeout_s=5).blocks[0])
    assert found.dtype == dtype
    assert torch.equal(found, tensor)


def test_a_view_crosses_as_what_it_shows():
    tensor = torch.arange(12.0).view(3, 4).t()
    assert torch.equal(to_tensor(to_block(tensor)), tensor)
