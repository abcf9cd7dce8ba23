"""Others that use the machine are named."""

import pytest

from hwprofiles.other_use import Use
from mirrorsd.cli import console
from mirrorsd.cli.progress_bar import OthersWatch, watching_others
from tests.mirrorsd.clock import Clock

BUSY, QUIET = Use(programs=0.8, host=0.0, num_cores=2), Use(programs=0.0, host=0.0, num_cores=2)


class Others:
    """What is told of others, look by look."""

    def __init__(self, *looks, so_far=QUIET):
        self.looks, self.total = list(looks), so_far

    def lately(self):
        return self.looks.pop(0)

    def so_far(self):
        return self.total


@pytest.fixture
def said(capsys):
    console.messages.cache_clear()
    yield lambda: capsys.readouterr().err
    console.messages.cache_clear()


def test_it_is_looked_now_and_then_and_said_once(said):
    clock, others = Clock(), Others(QUIET, BUSY, BUSY)
    watch = OthersWatch(others, clock=clock)
    report = watch.on(lambda _step, _share: None)
    for now_s in (1, 6, 7, 12, 18):
        clock.now_s = now_s
        report("working", 0.5)
    assert said().count("Other programs are using 0.8 of the 2 cores") == 1
    assert others.looks == [BUSY], "a look at 6 and at 12 s, and none after it was said"


@pytest.mark.parametrize(("use", "is_said"), [(BUSY, True), (QUIET, False), (None, False)])
def test_it_is_summed_up_in_the_end_with_what_others_do_to_the_work(said, monkeypatch, use, is_said):
    monkeypatch.setattr("hwprofiles.other_use.OtherUse", lambda: Others(so_far=use))
    heard = []
    with watching_others(effect="it takes longer") as watch:
        watch.on(lambda *step: heard.append(step))("working", 0.5)
    assert heard == [("working", 0.5)]
    assert len(watch.said) == is_said
    assert said() == "Other programs used 0.8 of the 2 cores on average: it takes longer.\n" * is_said


def test_what_others_do_to_the_work_is_said_once(said):
    clock = Clock()
    watch = OthersWatch(Others(BUSY, so_far=BUSY), effect="it takes longer", clock=clock)
    clock.now_s = 6
    watch.look()
    watch.sum_up()
    assert said().splitlines() == [
        "Other programs are using 0.8 of the 2 cores: it takes longer.",
        "Other programs used 0.8 of the 2 cores on average.",
    ]
