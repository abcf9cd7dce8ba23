"""What a finished run is worth on held-out answers: figures for the card, taken from the folder on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from training.judging.drafter_acceptance import Acceptance

Coverage = dict[int, dict[int, float]]
"""Exit layer -> top-k -> share of positions whose target token is among the exit's k best."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Held-out figures of a drafter folder.

    Attributes:
        acceptance: of a draft, for every window length, without exit features and (if it takes any) with;
            empty where no held-out answer is greedy.
        exit_coverage: of trained adapters.
        untrained_exit_coverage: of the same exits with final norm and head alone.
        extends: folder of the drafter that this one is, with something added; None for a new one.
    """

    acceptance: tuple[Acceptance, ...] = ()
    exit_coverage: Coverage = field(default_factory=dict)
    untrained_exit_coverage: Coverage = field(default_factory=dict)
    extends: Path | None = None
