"""Whatever happens to one rank, the others say what it was, in time, and none of them waits for ever."""

import os
import signal
import time
from contextlib import suppress

import pytest

from decoding.errors import LaneError
from tests.runtime.parallel.ranks import TIMEOUT_S, result_of, start_rank

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

    def run(function, sizes, waited_for, **deadlines):
        started.extend(start_rank(function, tmp_path, rank, size, **deadlines) for rank, size in sizes.items())
        for rank in waited_for:
            started[rank].wait(TIMEOUT_S)
        return [result_of(tmp_path, rank) for rank in waited_for]

    yield run
    end(started)


def nothing(group):
    return "joined"


def one_ends(group):
    if group.rank == 1:
        os._exit(3)
    group.mean([1.0])


def one_hangs(group):
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    group.mean([1.0])


def one_leaves_word(group):
    if group.rank == 1:
        group.report("out of memory")
        os._exit(1)
    group.mean([1.0])


def rank_0_ends_while_others_are_idle(group):
    if group.rank == 0:
        os._exit(3)
    group.tell()


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


def test_a_rank_that_ends_is_missed_at_once(run):
    [(kind, text)] = run(one_ends, {0: 2, 1: 2}, [0], deadline_s=TIMEOUT_S)
    assert kind == "LaneDiedError"
    assert "a rank ended" in text


def test_a_rank_that_hangs_is_missed_at_the_deadline(run):
    [(kind, text)] = run(one_hangs, {0: 2, 1: 2}, [0], deadline_s=DEADLINE_S)
    assert kind == "LaneDiedError"
    assert text == "a group of 2 ranks is lost: a rank has not answered for 2 s"


def test_what_a_rank_left_word_of_is_told(run):
    [(kind, text)] = run(one_leaves_word, {0: 2, 1: 2}, [0], deadline_s=DEADLINE_S)
    assert kind == "LaneDiedError"
    assert text == "a group of 2 ranks is lost: rank 1 failed: out of memory"


def test_ranks_that_wait_for_the_next_message_end_with_rank_0(run):
    [(kind, _)] = run(rank_0_ends_while_others_are_idle, {0: 2, 1: 2}, [1])
    assert kind == "LaneDiedError"


def test_what_ranks_exchange_is_everybodys_failures_included_however_long_or_late(run):
    own = "its memory holds 3 of 4 GB"
    others = f"rank 1 of 3 failed: LaneError: {own}"
    found = run(exchanges, {0: 3, 1: 3, 2: 3}, [0, 1, 2], deadline_s=DEADLINE_S)
    assert found == [[[1.0, 5.0], [], text, True, "at last"] for text in (others, own, others)]
