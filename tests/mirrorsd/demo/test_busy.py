import pytest

from hwprofiles.other_use import Use
from mirrorsd.demo.busy import busy_meanwhile, busy_now, weak_answer

QUIET = Use(programs=0.05, host=0.05, num_cores=2)


@pytest.mark.parametrize("sentence", [busy_now, busy_meanwhile, weak_answer])
@pytest.mark.parametrize("use", [None, QUIET])
def test_a_quiet_machine_is_not_spoken_of(sentence, use):
    assert sentence(use) is None


def test_others_are_named_before_and_after():
    use = Use(programs=0.84, host=0.0, num_cores=2)
    assert busy_now(use) == (
        "Other programs are using 0.8 of the 2 cores: times that are measured now are less certain than on a quiet "
        "machine."
    )
    assert busy_meanwhile(use).startswith("Other programs used 0.8 of the 2 cores meanwhile: what was measured ")


def test_a_weak_answer_is_called_so():
    text = weak_answer(Use(programs=0.84, host=0.31, num_cores=2))
    assert text == (
        "Other programs used 0.8 of the 2 cores, and the host of this virtual machine took 0.3 meanwhile: the "
        "answer is less certain than on a quiet machine. Run it again when nothing else runs."
    )


def test_the_host_alone_is_no_program():
    assert busy_now(Use(programs=0.0, host=0.3, num_cores=1)).startswith(
        "The host of this virtual machine takes 0.3 of the only core: "
    )


def test_work_that_measures_no_time_says_what_it_suffers():
    use = Use(programs=0.84, host=0.0, num_cores=2)
    assert busy_now(use, "it takes longer") == "Other programs are using 0.8 of the 2 cores: it takes longer."
    assert busy_meanwhile(use, "it took longer") == "Other programs used 0.8 of the 2 cores meanwhile: it took longer."
