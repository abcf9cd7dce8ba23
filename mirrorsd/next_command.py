"""The command that decodes by a schedule, as verbs and pages print it: with all that it needs, ready to be pasted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

QUESTION = "Why is the sky blue?"


def run_command(schedule: Path, models: Sequence[str] = ()) -> str:
    """How to use a schedule file; `models` are the options that name its target, exits and weights."""
    return shlex.join(("mirrorsd", "run", "--schedule", str(schedule), *models, "--prompt", QUESTION))
