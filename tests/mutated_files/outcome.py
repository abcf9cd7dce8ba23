"""What becomes of a damaged file: a clean error, or an answer that is finite. Anything else is a defect."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from random import Random
from typing import Final

from decoding.errors import MOST_CHARACTERS, MirrorsdError
from tests.mutated_files.kind import Kind
from tests.mutated_files.model_folders import MODEL_FOLDERS
from tests.mutated_files.mutations import damage
from tests.mutated_files.plan_files import PLAN_FILES
from tests.mutated_files.text_files import TEXT_FILES

KINDS: Final[dict[str, Kind]] = PLAN_FILES | TEXT_FILES | MODEL_FOLDERS
REFUSED: Final = "refused"
ANSWERED: Final = "answered"


class UntoldError(AssertionError):
    """A case that ended in neither of the two ways."""


def outcome(kind: str, sound: Path, names: list[str], scratch: Path, seed: int) -> str:
    """Damage a copy of the sound example by a seed, and read it: `REFUSED` or `ANSWERED`.

    Raises:
        UntoldError: the error is none of ours or too long, or a number of the answer is not finite.
    """
    if scratch.exists():
        shutil.rmtree(scratch)
    shutil.copytree(sound, scratch)
    damage(scratch, names, Random(f"{kind} {seed}"))
    return read_outcome(KINDS[kind], scratch)


def read_outcome(kind: Kind, folder: Path) -> str:
    """Read what is in a folder; errors as in `outcome`."""
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
