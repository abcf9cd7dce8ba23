"""What becomes of a file once it is damaged (`benchmarks._mutated_files.mutations`).

Reading ends in one of two ways: a clean error, or an answer that is finite. Anything else is a defect.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from random import Random
from typing import Final

from benchmarks._mutated_files.kinds import KINDS
from benchmarks._mutated_files.mutations import damage
from decoding.errors import MOST_CHARACTERS, MirrorsdError

REFUSED: Final = "refused"
ANSWERED: Final = "answered"


class UntoldError(AssertionError):
    """A case that ended in neither of the two ways."""


def make_sound(kind: str, folder: Path) -> list[str]:
    """Write the sound example; the files to be damaged."""
    folder.mkdir(parents=True)
    return KINDS[kind].make(folder)


def outcome(kind: str, sound: Path, names: list[str], scratch: Path, seed: int) -> str:
    """Damage a copy of the sound example by a seed, and read it: `REFUSED` or `ANSWERED`.

    Raises:
        UntoldError: the error is none of ours or too long, or a number of the answer is not finite.
    """
    if scratch.exists():
        shutil.rmtree(scratch)
    shutil.copytree(sound, scratch)
    damage(scratch, names, Random(f"{kind} {seed}"))
    return read_outcome(kind, scratch)


def read_outcome(kind: str, folder: Path) -> str:
    """Read what is in a folder; errors as in `outcome`."""
    try:
        numbers = list(KINDS[kind].read(folder))
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
