"""A file of public measurements of speculation: devices, engines, models, and what was measured."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from decoding.yaml_file import load_yaml

LARGEST_WINDOW: Final = 64
"""A key above it is a context."""
USUAL_CONTEXT: Final = 512
USUAL_WINDOW: Final = 4
"""Where the number drafted follows what is accepted, or is not told."""
_DIGITS: Final = re.compile(r"\d+")
_DRAFTED: Final = re.compile(r"(\d+) drafted")
Speed = Annotated[float, Field(gt=0, le=1e6)]
Key = int | str
BySetting = Mapping[Key, Speed | None]
Share = Annotated[float, Field(ge=0, le=1)]


class _Told(BaseModel):
    """What a file tells, whatever else it tells beside."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class CaseModel(_Told):
    """A target: its shape's name, and how its weights are stored."""

    shape: str
    weights: str | None = None


class CaseDrafter(_Told):
    """A drafter.

    Attributes:
        kind: mtp, draft, eagle3, dflash, dspark, lookup, none or the like.
        shape, weights: of a draft model.
        parallel: whether it drafts while the target verifies.
    """

    kind: str = "none"
    shape: str | None = None
    weights: str | None = None
    parallel: bool = False


class Case(_Told):
    """One source's measurements of one machine, one request at a time.

    Attributes:
        id, source: its name, and where it is from.
        device, engine: as people call them.
        target, drafter: the models.
        plain_tokens_per_s: without speculation; by context where that varies.
        accepted_share: accepted over drafted tokens, by number drafted.
        published_tokens_per_s: by number drafted, or by context.
        context: cached tokens.
        drafted: how many, where speeds are by context.
        note: what else the source says.
    """

    id: str
    source: str = ""
    device: str
    engine: str = ""
    target: CaseModel
    drafter: CaseDrafter
    plain_tokens_per_s: Speed | BySetting | None = None
    accepted_share: Share | Mapping[Key, Share | None] | None = None
    published_tokens_per_s: Speed | BySetting | None = None
    context: int | None = None
    drafted: int | None = None
    note: str = ""

    @property
    def measured(self) -> "Iterator[PublishedSpeed]":
        """All that was measured of speculation."""
        found = self.published_tokens_per_s
        speeds = found if isinstance(found, Mapping) else {} if found is None else {"auto": found}
        told = _DRAFTED.search(self.note)
        usual = self.drafted or (int(told[1]) if told else None)
        for key, speed in speeds.items():
            digits = _DIGITS.search(str(key))
            number = int(digits.group()) if digits else None
            if speed is None:
                continue
            by_context = number is not None and number > LARGEST_WINDOW
            drafted = usual if by_context or number is None else number
            yield PublishedSpeed(
                key=str(key),
                drafted=USUAL_WINDOW if drafted is None else drafted,
                is_drafted_known=drafted is not None,
                context=number if by_context and number is not None else self.context or USUAL_CONTEXT,
                tokens_per_s=speed,
                plain=self._at(self.plain_tokens_per_s, key, number if by_context else self.context),
                share=self._at(self.accepted_share, key, None),
            )

    @staticmethod
    def _at(found: float | Mapping[Key, float | None] | None, key: Key, context: int | None) -> float | None:
        """Return what is told under a key or a context; what is told of everything, otherwise."""
        if not isinstance(found, Mapping):
            return found
        by_text = {str(name): value for name, value in found.items()}
        return by_text.get(str(key), None if context is None else by_text.get(str(context)))


class PublishedSpeed(NamedTuple):
    """One speed of speculation: tokens drafted, cached ones before, and what else is told of it."""

    key: str
    drafted: int
    is_drafted_known: bool
    context: int
    tokens_per_s: float
    plain: float | None
    share: float | None


class CaseFile(_Told):
    """All cases of a file."""

    cases: Annotated[tuple[Case, ...], Field(min_length=1, strict=False)]


def load_cases(path: Path) -> tuple[Case, ...]:
    """Return the cases of a file.

    Raises:
        ConfigError: it is no such file; names line and value.
    """
    return load_yaml(path, CaseFile).cases
