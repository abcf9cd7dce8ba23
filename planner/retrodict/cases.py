"""Reads a file of public measurements of speculation: devices, engines, models, and measured speeds."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from decoding.errors import cut, mistake
from decoding.validation import mistakes_in
from decoding.yaml_file import lines_of, load_yaml
from planner.published.round_tokens import share_at
from planner.retrodict.speed_settings import (
    LARGEST_WINDOW,
    Setting,
    ToldTree,
    drafted_by,
    ends_early,
    setting_of,
    tree_of,
)

USUAL_CONTEXT: Final = 512
USUAL_WINDOW: Final = 4
"""Assumed where a source does not say how many tokens were drafted, or where the number adapts to acceptance."""
_BATCHES: Final = ("batch", "batch_size", "concurrency", "max_concurrency", "num_sequences")
"""Field names for how many requests were decoded at a time."""
_EVERY: Final = ""
"""The key of a value that holds for every setting."""


def _no_truth(told: Any) -> Any:
    if isinstance(told, bool):
        raise ValueError(f"should be a number, found {str(told).lower()}")  # noqa: TRY004 - pydantic adds the place
    return told


def _one_at_a_time(told: int) -> int:
    if told > 1:
        raise ValueError("speeds of one request at a time are predicted")
    return told


def _as_in_keys(told: Any) -> Any:
    """Return the number of cached tokens in a text such as `32k` or `4,096`, written like the keys of speeds."""
    setting = setting_of(told) if isinstance(told, str) else None
    return told if setting is None or setting.context is None or setting.drafted is not None else setting.context


Speed = Annotated[float, BeforeValidator(_no_truth), Field(gt=0, le=1e6)]
_Share = Annotated[float, BeforeValidator(_no_truth), Field(ge=0, le=1)]
_ByKey = BeforeValidator(
    lambda told: {str(key): one for key, one in told.items()} if isinstance(told, Mapping) else {_EVERY: told}
)
Speeds = Annotated[dict[str, Speed | None], _ByKey]
_Shares = Annotated[dict[str, _Share | None], _ByKey]


class _Told(BaseModel):
    """A part of a case file; `model_extra` has its unknown fields, which are not read."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_untold(cls, told: Any) -> Any:
        if not isinstance(told, dict):
            return told
        return {str(name): value for name, value in told.items() if value is not None}

    def unread(self, inside: str = "") -> dict[str, str | None]:
        """Return the unknown fields, each with the known field that may have been meant; `inside` prefixes names."""
        near = {
            name: get_close_matches(cut(name, 60), type(self).model_fields, n=1, cutoff=0.7)
            for name in self.model_extra or {}
        }
        return {inside + name: inside + found[0] if found else None for name, found in near.items()}


class CaseModel(_Told):
    """A target: its shape's name, and how its weights are stored."""

    shape: str
    weights: str | None = None


class CaseDrafter(_Told):
    """A drafter.

    Attributes:
        kind: mtp, draft, eagle3, dflash, dspark, lookup, none or similar.
        shape, weights: those of a draft model.
        parallel: whether it drafts while the target verifies.
    """

    kind: str = "none"
    shape: str | None = None
    weights: str | None = None
    parallel: bool = False


class Case(_Told):
    """One source's measurements of one machine, one request at a time.

    Attributes:
        id, source: name of the case, and where it was published.
        device, engine: as the source names them.
        target, drafter: the models.
        plain_tokens_per_s: speed without speculation; by context where that varies.
        accepted_share: accepted over drafted tokens, by number of drafted tokens.
        published_tokens_per_s: speed with speculation, by number of drafted tokens or by context.
        context: cached tokens.
        drafted: number of drafted tokens where speeds are by context.
        batch: requests at a time.
        note: what else the source says.
    """

    id: str
    source: str = ""
    device: str
    engine: str = ""
    target: CaseModel
    drafter: CaseDrafter = CaseDrafter()
    plain_tokens_per_s: Speeds = {}
    accepted_share: _Shares = {}
    published_tokens_per_s: Speeds = {}
    context: Annotated[int, BeforeValidator(_as_in_keys), Field(ge=0, lt=1 << 31)] | None = None
    drafted: Annotated[int, Field(ge=1, le=LARGEST_WINDOW)] | None = None
    batch: Annotated[int, AfterValidator(_one_at_a_time), Field(ge=1, validation_alias=AliasChoices(*_BATCHES))] = 1
    note: str = ""

    def unread(self, inside: str = "") -> dict[str, str | None]:
        """Return the unknown fields of the case, its target and its drafter."""
        return super().unread(inside) | self.target.unread("target.") | self.drafter.unread("drafter.")

    @property
    def measured(self) -> "Iterator[PublishedSpeed]":
        """All measured speeds of speculation whose settings can be parsed; 0 drafted tokens are plain decoding."""
        usual = self.drafted or drafted_by(self.note)
        for key, speed in self.published_tokens_per_s.items():
            setting = setting_of(key)
            if speed is None or setting is None or setting.drafted == 0:
                continue
            drafted = usual if setting.drafted is None else setting.drafted
            tree, is_limit = tree_of(f"{key}; {self.note}"), ends_early(f"{key}; {self.note}")
            if tree and drafted is None:
                drafted = tree.num_steps or tree.size
            cached = self.context if setting.context is None else setting.context
            meant = Setting(drafted, cached, setting.words)
            share, window = _told_of(key, self.accepted_share, meant), USUAL_WINDOW if drafted is None else drafted
            another = None if share is not None or tree or is_limit else _told_of_another(self.accepted_share, meant)
            yield PublishedSpeed(
                key=key or "auto",
                drafted=window,
                is_drafted_known=drafted is not None and not is_limit,
                context=USUAL_CONTEXT if cached is None else cached,
                tokens_per_s=speed,
                plain=_told_of(key, self.plain_tokens_per_s, meant._replace(drafted=None)),
                share=share if another is None else share_at(window, *another),
                is_share_of_another=another is not None,
                ends_early=is_limit,
                tree=tree,
            )

    @property
    def plain(self) -> "Iterator[PublishedSpeed]":
        """All measured speeds of plain decoding whose settings can be parsed."""
        for key, speed in self.plain_tokens_per_s.items():
            setting = setting_of(key)
            if speed is not None and setting is not None:
                cached = self.context if setting.context is None else setting.context
                context, name = USUAL_CONTEXT if cached is None else cached, key if setting.words else "0"
                yield PublishedSpeed(name, 0, True, context, speed, speed, None)


def _told_of(key: str, told: Mapping[str, float | None], meant: Setting) -> float | None:
    """Return the value under a key, else under a key of the same meaning, else the one for every setting."""
    if key in told:
        return told[key]
    settings = ((setting_of(one), value) for one, value in told.items())
    same = [(setting, value) for setting, value in settings if setting and setting.holds(meant)]
    return min(same, key=lambda one: one[0].count(None))[1] if same else told.get(_EVERY)


def _told_of_another(shares: Mapping[str, float | None], meant: Setting) -> tuple[int, float] | None:
    """Return the nearest other number of drafted tokens that has an accepted share, and that share.

    Shares for a single drafted token are not used for longer drafts, nor the reverse: they are much higher.
    """
    window, found = meant.drafted or USUAL_WINDOW, list[tuple[int, float]]()
    for key, share in shares.items():
        setting = setting_of(key)
        if share is None or setting is None or setting.drafted is None or min(setting.drafted, window) < 2:
            continue
        if setting.holds(meant._replace(drafted=setting.drafted)):
            found.append((setting.drafted, share))
    return min(found, key=lambda one: abs(one[0] - window), default=None)


class PublishedSpeed(NamedTuple):
    """One published speed.

    Attributes:
        key: its setting in the words of the source, or `auto`; 0 for plain decoding.
        drafted, is_drafted_known: drafted tokens per round; whether the source says so of every round.
        context: cached tokens before them.
        tokens_per_s, plain: speed with speculation, and without.
        share, is_share_of_another: accepted over drafted tokens; whether it was derived from another draft length.
        ends_early: whether drafting stops at a token that the drafter is unsure of.
        tree: the drafted tree; None for a chain.
    """

    key: str
    drafted: int
    is_drafted_known: bool
    context: int
    tokens_per_s: float
    plain: float | None
    share: float | None
    is_share_of_another: bool = False
    ends_early: bool = False
    tree: ToldTree | None = None


class UnreadableCase(NamedTuple):
    """A case that cannot be read: its name, and why."""

    id: str
    reason: str


class CaseFile(_Told):
    """A case file whose cases are all valid."""

    cases: Annotated[tuple[Case, ...], Field(min_length=1, strict=False)]


class _UncheckedFile(_Told):
    """A case file, any case of which may be invalid."""

    cases: Annotated[tuple[Any, ...], Field(min_length=1, strict=False)]


def load_cases(path: Path) -> tuple[Case | UnreadableCase, ...]:
    """Return the cases of a file; an invalid case becomes an `UnreadableCase`.

    Raises:
        ConfigError: the file is no case file, or all of its cases are invalid; the message names line and value.
    """
    found = tuple(_read(told, index, path) for index, told in enumerate(load_yaml(path, _UncheckedFile).cases))
    return found if any(isinstance(one, Case) for one in found) else load_yaml(path, CaseFile).cases


def _read(told: Any, index: int, path: Path) -> Case | UnreadableCase:
    try:
        return Case.model_validate(told)
    except ValidationError as error:
        first = mistakes_in(error)[0]
        place = *("cases", index), *first["loc"]
        (line,) = lines_of(path, [place])
        name = told.get("id") if isinstance(told, dict) else None
        reason = mistake({**first, "loc": place})
        return UnreadableCase(f"case {index + 1}" if name is None else cut(str(name), 60), f"line {line}: {reason}")
