"""All ranks get the messages of rank 0's parent, and come to the same results or end."""

import os
import signal
import socket
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from decoding.errors import LaneDiedError, LaneError
from runtime.parallel.local_group import GroupChannel
from runtime.wire.channel import Channel
from runtime.wire.operations import call
from runtime.worker.server import LaneServer
from tests.runtime.parallel.ranks import TIMEOUT_S, result_of, start_rank


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

    def mean(self, values):
        return self.tell()


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


def test_every_rank_gets_what_the_parent_sends_and_only_rank_0_answers(parent, ranks):
    assert [rank.has_message() for rank in ranks] == [False, False]
    ask(parent)
    assert [rank.has_message() for rank in ranks] == [True, True]
    assert [rank.receive().fields["op"] for rank in ranks] == ["Verify", "Verify"]
    for rank in reversed(ranks):
        rank.send({"id": 1, "reply": 7})
    assert parent[0].receive().fields["reply"] == 7
    assert not parent[0].has_message()


def test_seconds_are_the_mean_of_the_ranks(parent, ranks):
    ask(parent, "MeasureRole.measure")
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


@pytest.mark.parametrize("ask_for", ["receive", "has_message"])
def test_the_parent_is_told_that_the_group_is_lost_once_it_waits_for_an_answer(parent, ask_for):
    channel = GroupChannel(LostGroup(0, deque()), parent[1])
    ask(parent, request=None)
    ask(parent, request=4)
    with pytest.raises(EOFError):
        getattr(channel, ask_for)()
    assert parent[0].receive().fields == {"id": 4, "error": "LaneDiedError", "text": "rank 1 has ended"}


def test_the_parent_is_told_that_the_group_is_lost_while_it_times(parent, ranks):
    ask(parent, "MeasureRole.measure", request=4)
    ranks[0].receive()
    ranks[0]._group = LostGroup(0, deque())
    ranks[0].send({"id": 4, "reply": [1.0]})
    assert parent[0].receive().fields == {"id": 4, "error": "LaneDiedError", "text": "rank 1 has ended"}
    with pytest.raises(EOFError):
        ranks[0].receive()


def test_the_parent_is_told_what_failed_first(parent):
    channel = GroupChannel(LostGroup(0, deque()), parent[1])
    channel.fail(LaneError("no memory"))
    ask(parent, request=4)
    with pytest.raises(EOFError):
        channel.receive()
    assert parent[0].receive().fields == {"id": 4, "error": "LaneError", "text": "no memory"}


@pytest.mark.parametrize("ask_for", ["receive", "has_message"])
def test_a_group_that_is_lost_when_its_parent_is_ends_like_others(parent, ask_for):
    parent[0].close()
    with pytest.raises(EOFError):
        getattr(GroupChannel(LostGroup(0, deque()), parent[1]), ask_for)()


def test_ranks_that_fail_alike_go_on(parent, ranks):
    for rank in ranks:
        rank.fail(LaneError("no memory"))
    assert [rank.has_message() for rank in ranks] == [False, False]


def test_a_lane_that_lost_its_group_at_work_ends_so_that_it_can_be_started_again(parent, ranks):
    ranks[0].send({"id": 1, "error": "LaneDiedError", "text": "rank 1 has ended"})
    ask(parent)
    with pytest.raises(EOFError):
        ranks[0].receive()


DEADLINE_S = 2.0


def end(processes):
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.wait()


@pytest.fixture
def run(tmp_path):
    """Starts ranks (each with its world size) and returns what those say that are waited for."""
    started = []

    def run(function, sizes, waited_for, *arguments, **deadlines):
        started.extend(
            start_rank(function, tmp_path, rank, size, *arguments, **deadlines) for rank, size in sizes.items()
        )
        for rank in waited_for:
            started[rank].wait(TIMEOUT_S)
        return [result_of(tmp_path, rank) for rank in waited_for]

    yield run
    end(started)


def nothing(group):
    return "joined"


def one_is_lost(group, how):
    if group.rank == 1:
        if how == "hangs":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "leaves word":
            group.report("out of memory")
        os._exit(3)
    group.mean([1.0])


def rank_0_ends_while_others_are_idle(group):
    if group.rank == 0:
        os._exit(3)
    group.tell()


class Steps:
    """A draft that always has a step to do; one fails on rank 1."""

    def __init__(self, rank):
        self.rank, self.has_work = rank, True

    def step(self):
        if self.rank == 1:
            raise LaneError("its memory is full")

    def forget(self):
        self.has_work = False


def serves(group):
    """What the parent is told of its first operation that fails."""
    ours, theirs = map(Channel, socket.socketpair())
    channel = GroupChannel(group, theirs if group.rank == 0 else None)
    server = LaneServer(channel, group=group, on_failure=channel.fail)
    server._draft = Steps(group.rank)

    def ask():
        found = {}
        while "error" not in found:
            ours.send(*call(1, LaneServer.ping))
            found = ours.receive().fields
        return found["text"]

    with ThreadPoolExecutor() as pool:
        said = pool.submit(ask) if group.rank == 0 else None
        server.serve()
        return said.result()


def exchanges(group):
    """Means, a failure, a long message, and one that comes later than any exchange of data may."""

    def work():
        if group.rank == 1:
            raise LaneError("its memory holds 3 of 4 GB")

    found = [group.mean([1.0 * group.rank, 5.0]), group.mean([])]
    try:
        group.all_do(work)
    except LaneError as error:
        found.append(str(error))
    told = group.tell(bytes(range(256)) * 40 if group.rank == 0 else b"")
    found.append(told == bytes(range(256)) * 40)
    if group.rank == 0:
        time.sleep(2 * DEADLINE_S)
    return [*found, group.tell(b"at last" if group.rank == 0 else b"").decode()]


def test_a_rank_that_never_joins_is_named(run):
    [(kind, text)] = run(nothing, {0: 2}, [0], join_deadline_s=1.0)
    assert kind == "LaneTimeoutError"
    assert text == "rank 1 of a group of 2 has not joined within 1 s"


@pytest.mark.parametrize(
    ("step", "reason"), [("init_process_group", "a rank has not answered for 1 s"), ("new_group", "a rank ")]
)
def test_a_rank_that_ends_while_the_group_forms_is_missed_by_the_deadline(run, step, reason):
    [(kind, text)] = run(nothing, {0: 2, 1: 2}, [0], deadline_s=1.0, ends_at=step)
    assert kind == "LaneDiedError"
    assert text.startswith(f"a group of 2 ranks is lost: {reason}")


@pytest.mark.parametrize(
    ("how", "deadline_s", "reason"),
    [
        ("ends", TIMEOUT_S, "a rank ended"),
        ("hangs", DEADLINE_S, "a rank has not answered for 2 s"),
        ("leaves word", DEADLINE_S, "rank 1 failed: out of memory"),
    ],
)
def test_a_rank_that_ends_is_missed_at_once_one_that_hangs_at_the_deadline_and_its_word_is_told(
    run, how, deadline_s, reason
):
    [(kind, text)] = run(one_is_lost, {0: 2, 1: 2}, [0], how, deadline_s=deadline_s)
    assert kind == "LaneDiedError"
    assert text.startswith(f"a group of 2 ranks is lost: {reason}")


def test_what_failed_on_one_rank_alone_is_told_though_nobody_waited_for_it(run):
    parent, other = run(serves, {0: 2, 1: 2}, [0, 1], deadline_s=DEADLINE_S)
    assert parent == "a group of 2 ranks is lost: rank 1 failed: its memory is full"
    assert other == ["LaneError", "it failed, and rank 0 did not in the same way: its memory is full"]


def test_ranks_that_wait_for_the_next_message_end_with_rank_0(run):
    [(kind, _)] = run(rank_0_ends_while_others_are_idle, {0: 2, 1: 2}, [1])
    assert kind == "LaneDiedError"


def test_what_ranks_exchange_is_everybodys_failures_included_however_long_or_late(run):
    own, others = "its memory holds 3 of 4 GB", "rank 1 of 3 failed: LaneError: its memory holds 3 of 4 GB"
    found = run(exchanges, {0: 3, 1: 3, 2: 3}, [0, 1, 2], deadline_s=DEADLINE_S)
    assert found == [[[1.0, 5.0], [], text, True, "at last"] for text in (others, own, others)]
