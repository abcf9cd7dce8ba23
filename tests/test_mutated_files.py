"""Damaged files of every kind end in a clean error or in an answer that is finite (`benchmarks/mutated_files.py`)."""

import json
import shutil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks._mutated_files.kind import Kind
from benchmarks._mutated_files.kinds import KINDS
from benchmarks._mutated_files.mutations import damage
from benchmarks._mutated_files.outcome import ANSWERED, REFUSED, UntoldError, make_sound, outcome, read_outcome
from decoding.errors import ConfigError
from hwprofiles.lint import lint_file

NUM_CASES = {False: 12, True: 3}
"""By whether a kind is slow; the benchmark has the many."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The sound example of a kind: its folder, and the files to be damaged."""

    def make(kind):
        folder = tmp_path_factory.mktemp("sound") / "example"
        return folder, make_sound(kind, folder)

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_is_refused_or_answered(kind, sound, tmp_path_factory) -> None:
    folder, names = sound(kind)
    scratch = tmp_path_factory.mktemp("scratch") / "case"
    assert read_outcome(kind, folder) == ANSWERED
    found = set()

    @settings(max_examples=NUM_CASES[KINDS[kind].is_slow], deadline=None, database=None)
    @given(st.integers(0, 10**6))
    def every_case_ends_well(seed):
        found.add(outcome(kind, folder, names, scratch, seed))

    every_case_ends_well()
    assert REFUSED in found


@pytest.mark.parametrize(
    ("read", "complaint"),
    [
        (lambda at: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda at: [1.0, float("nan")], "an answer holds nan"),
        (lambda at: [float("inf")], "an answer holds inf"),
    ],
)
def test_an_end_that_is_none_of_the_two_is_found(monkeypatch, tmp_path, read, complaint) -> None:
    monkeypatch.setitem(KINDS, "test", Kind(make=lambda at: [], read=read))
    with pytest.raises(UntoldError, match=complaint):
        read_outcome("test", tmp_path)


def test_a_message_nobody_can_read_is_found(monkeypatch, tmp_path) -> None:
    class LongError(ConfigError):
        def __str__(self):
            return "x" * 501

    def refuse(_):
        raise LongError

    monkeypatch.setitem(KINDS, "test", Kind(make=lambda at: [], read=refuse))
    with pytest.raises(UntoldError, match="a message of 501 characters"):
        read_outcome("test", tmp_path)


def test_a_seed_damages_the_same_way_twice(sound, tmp_path) -> None:
    folder, names = sound("prompts")
    texts = []
    for scratch in (tmp_path / "one", tmp_path / "other"):
        for seed in range(20):
            outcome("prompts", folder, names, scratch, seed)
            texts.append((scratch / "prompts.jsonl").read_bytes())
    assert texts[:20] == texts[20:]
    assert len(set(texts[:20])) > 15
    assert json.loads((folder / "prompts.jsonl").read_bytes().splitlines()[0])["prompt_id"] == "a"


@pytest.mark.parametrize("kind", ["platform", "device", "link"])
def test_the_linter_has_an_answer_for_every_damaged_file(kind, sound, tmp_path) -> None:
    folder, names = sound(kind)
    for seed in range(40):
        scratch = tmp_path / str(seed)
        shutil.copytree(folder, scratch)
        damage(scratch, names, Random(seed))
        assert all(finding.line >= 1 and finding.what for finding in lint_file(scratch / names[0]))
