"""All ranks get the messages of rank 0's parent, and come to the same results or end."""

import socket
from collections import deque

import pytest

from decoding.errors import LaneDiedError, LaneError
from runtime.parallel.local_group import GroupChannel
from runtime.wire.channel import Channel


class TwoRanks:
    """A group in one thread: what rank 0 tells waits until the other rank listens."""

    def __init__(self, rank, told, other_seconds=()):
        self.rank, self.reports = rank, []
        self._told, self._other_seconds = told, other_seconds

    def tell(self, data=b""):
        if self.rank == 0:
            self._told.append(data)
            return data
        return self._told.popleft()

    def mean(self, values):
        return [(one + other) / 2 for one, other in zip(values, self._other_seconds, strict=True)]

    def report(self, text):
        self.reports.append(text)


class LostGroup(TwoRanks):
    def tell(self, data=b""):
        raise LaneDiedError("rank 1 has ended")


@pytest.fixture
def parent():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), Channel(theirs)


@pytest.fixture
def ranks(parent):
    told = deque()
    return GroupChannel(TwoRanks(0, told, [3.0]), parent[1]), GroupChannel(TwoRanks(1, told))


def ask(parent, operation="Verify", request=1):
    parent[0].send({"op": operation, "id": request, "fields": {}})


def test_every_rank_gets_what_the_parent_sends(parent, ranks):
    ask(parent)
    assert [rank.receive().fields["op"] for rank in ranks] == ["Verify", "Verify"]


def test_every_rank_knows_whether_there_is_a_message(parent, ranks):
    assert [rank.has_message() for rank in ranks] == [False, False]
    ask(parent)
    assert [rank.has_message() for rank in ranks] == [True, True]


def test_only_rank_0_answers(parent, ranks):
    for rank in reversed(ranks):
        rank.send({"id": 1, "reply": 7})
    assert parent[0].receive().fields["reply"] == 7
    assert not parent[0].has_message()


def test_seconds_are_the_mean_of_the_ranks(parent, ranks):
    ask(parent, "Measure")
    ranks[0].receive()
    ranks[0].send({"id": 1, "reply": [1.0]})
    assert parent[0].receive().fields["reply"] == [2.0]


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ({"num_accepted": 3}, {"num_accepted": 3}),
        ({"window": 5, "spans": [0.1]}, {"window": 5, "spans": [0.2]}),
        ([0.1], [0.2]),
    ],
)
def test_ranks_whose_results_agree_go_on(parent, ranks, own, other):
    ranks[0].send({"id": 1, "reply": own, "start_s": 1.0})
    ranks[1].send({"id": 1, "reply": other, "start_s": 2.0})
    ask(parent)
    for rank in ranks:
        rank.receive()


@pytest.mark.parametrize(
    "other", [{"reply": {"num_accepted": 2}}, {"error": "LaneError", "text": "no memory"}, {"reply": None}]
)
def test_a_rank_that_comes_to_another_result_ends(parent, ranks, other):
    ask(parent)
    for rank in ranks:
        rank.receive()
    ranks[0].send({"id": 1, "reply": {"num_accepted": 3}})
    ranks[1].send({"id": 1, **other})
    ask(parent)
    ranks[0].receive()
    with pytest.raises(LaneError, match="another result of Verify than rank 0"):
        ranks[1].receive()


def test_a_rank_leaves_word_of_its_failure_and_takes_it_back(ranks):
    ranks[1].send({"id": 1, "error": "LaneError", "text": "no memory"})
    ranks[1].send({"id": 2, "reply": None})
    assert ranks[1]._group.reports == ["no memory", ""]


@pytest.mark.parametrize("ask_for", ["receive", "has_message"])
def test_all_ranks_end_with_the_parent(parent, ranks, ask_for):
    parent[0].close()
    for rank in ranks:
        with pytest.raises(EOFError):
            getattr(rank, ask_for)()


def test_the_parent_is_told_that_the_group_is_lost(parent):
    channel = GroupChannel(LostGroup(0, deque()), parent[1])
    ask(parent, request=4)
    with pytest.raises(EOFError):
        channel.receive()
    assert parent[0].receive().fields == {"id": 4, "error": "LaneDiedError", "text": "rank 1 has ended"}


def test_a_lane_that_lost_its_group_at_work_ends_so_that_it_can_be_started_again(parent, ranks):
    ranks[0].send({"id": 1, "error": "LaneDiedError", "text": "rank 1 has ended"})
    ask(parent)
    with pytest.raises(EOFError):
        ranks[0].receive()
