"""Damaged files of every kind end in a clean error or in an answer that is finite; anything else is a defect."""

import math
import shutil
from random import Random

import pytest

from decoding.errors import MOST_CHARACTERS, MirrorsdError
from hwprofiles.lint import lint_file
from tests.mutated_files.model_folders import MODEL_FOLDERS
from tests.mutated_files.mutations import damage
from tests.mutated_files.plan_files import PLAN_FILES
from tests.mutated_files.text_files import TEXT_FILES

KINDS = PLAN_FILES | TEXT_FILES | MODEL_FOLDERS
REFUSED, ANSWERED = "refused", "answered"


class UntoldError(AssertionError):
    """A case that ended in neither of the two ways."""


def read_outcome(kind, folder):
    """Read what is in a folder; an error that is none of ours or too long, or a number not finite, is untold."""
    try:
        numbers = list(kind.read(folder))
    except MirrorsdError as error:
        if not 0 < len(str(error)) <= MOST_CHARACTERS:
            raise UntoldError(f"a message of {len(str(error))} characters") from error
        return REFUSED
    except MemoryError:
        raise
    except Exception as error:
        raise UntoldError(f"{type(error).__name__}: {error}"[:300]) from error
    if wrong := [number for number in numbers if not math.isfinite(number)]:
        raise UntoldError(f"an answer holds {wrong[0]}")
    return ANSWERED


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The sound example of a kind: its folder, and the files to be damaged."""

    def make(kind):
        folder = tmp_path_factory.mktemp("sound")
        return folder, KINDS[kind].make(folder)

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_is_refused_or_answered(kind, sound, tmp_path):
    folder, names = sound(kind)
    assert read_outcome(KINDS[kind], folder) == ANSWERED
    found = []
    for seed in range(4 if KINDS[kind].is_slow else 16):
        scratch = tmp_path / str(seed)
        shutil.copytree(folder, scratch)
        damage(scratch, names, Random(f"{kind} {seed}"))
        found.append(read_outcome(KINDS[kind], scratch))
        shutil.rmtree(scratch)
    assert REFUSED in found


@pytest.mark.parametrize("kind", ["platform", "device", "link"])
def test_the_linter_has_an_answer_for_every_damaged_file(kind, sound, tmp_path):
    folder, names = sound(kind)
    found = []
    for seed in range(20):
        scratch = tmp_path / str(seed)
        shutil.copytree(folder, scratch)
        damage(scratch, names, Random(seed))
        found += lint_file(scratch / names[0])
    assert found
    assert all(finding.line >= 1 and finding.what for finding in found)
