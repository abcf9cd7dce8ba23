"""Errors a user can meet, in one tree. Broken invariants of our own are plain ``assert``s, not members of it.

A message names the file (where there is one), the value found, and the valid ones. However large the value is, the
message stays one that can be read on a terminal (`MOST_CHARACTERS`).
"""

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Any, Final

MOST_CHARACTERS: Final = 500
"""Longest message: a longer one keeps its beginning (the file and the line) and its end."""
_MOST_OF_A_VALUE: Final = 200
_ENDING: Final = 120
_GAP: Final = " [...] "
_FEW: Final = 8
"""Up to this many names are all listed."""
_MANY, _NEAREST = 60, 5
"""More names than the first are cut to the nearest ones."""
_MORE: Final = "and {} more mistakes"
_PLAIN: Final = (
    (re.compile(r"valid (dictionary|mapping)( or instance of \w+)?$"), "valid map"),
    (re.compile(r"valid tuple$"), "valid list"),
    (re.compile(r"^(Tuple|Dictionary) (should have .*) after validation"), r"Value \2"),
    (
        re.compile(r"^Input tag (.*) found using '(\w+)' does not match any of the expected tags: "),
        r"\2 is \1; it is one of ",
    ),
    (re.compile(r"^Unable to extract tag using discriminator '(\w+)'$"), r"\1 is missing"),
)
"""Words of pydantic that name types of Python, or how it tells types apart, and ours."""


def shown(value: object) -> str:
    """Return a value as a message shows it: its `repr`, cut where that is long or deep."""
    try:
        return cut(_SHORT.repr(value), _MOST_OF_A_VALUE)
    except ValueError:  # an integer of thousands of digits has no decimal form
        return f"a huge {type(value).__name__}"


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a text of at most `most` characters: its beginning and its end where it is longer."""
    if len(text) <= most:
        return text
    ending = min(_ENDING, most // 4)
    return text[: most - ending - len(_GAP)] + _GAP + text[-ending:]


def unknown(what: str, name: object, choices: Iterable[str]) -> str:
    """Return a message that there is no such name, with the close ones of several, the nearest of many, or else all."""
    names = list(choices)
    keys: dict[str, str] = {_key(one): one for one in reversed(names)}
    asked = _key(str(name))
    near = get_close_matches(asked, keys, n=len(keys), cutoff=0.7) if asked and keys else []
    near.sort(key=lambda key: (_likeness(key, asked), _likeness(keys[key].lower(), str(name).lower())), reverse=True)
    near = near[:3]
    near += [key for key in keys if len(asked) > 1 and asked in key and key not in near]
    if near and len(names) > _FEW:
        return f"no {what} is called {shown(name)}; did you mean {' or '.join(keys[key] for key in near[:3])}?"
    if len(names) > _MANY:
        nearest = get_close_matches(asked, keys, n=_NEAREST, cutoff=0.0)
        told = f"{', '.join(keys[key] for key in nearest)} and {len(names) - len(nearest)} others, less like it"
        return f"no {what} is called {shown(name)}; there are {told}"
    return f"no {what} is called {shown(name)}; there are {', '.join(names)}"


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def _key(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def mistake(item: Mapping[str, Any]) -> str:
    """Return an entry of a pydantic `ValidationError.errors()` in words: the place, what is wrong, and the value."""
    place = ".".join(filter(None, map(str, item["loc"]))) or "(whole file)"
    return f"{cut(place, _MOST_OF_A_VALUE)}: {wrong(item)}"


def wrong(item: Mapping[str, Any]) -> str:
    """Return the same without the place."""
    value = item.get("input")
    found = "" if isinstance(value, dict | list) else f", found {shown(value)}"
    what = str(item["msg"]).removeprefix("Value error, ")
    for words, ours in _PLAIN:
        what = words.sub(ours, what)
    return f"{cut(what, _MOST_OF_A_VALUE)}{found}"


def listed(mistakes: Sequence[str], *, num_others: int = 0) -> str:
    """Return as many mistakes as a message has room for, a line each, and the number of the rest and of others."""
    lines = [cut(mistakes[0], MOST_CHARACTERS - len(_MORE))]
    for one in mistakes[1:]:
        if sum(map(len, lines)) + len(lines) + len(one) + len(_MORE) > MOST_CHARACTERS:
            break
        lines.append(one)
    rest = len(mistakes) - len(lines) + num_others
    return "\n".join([*lines, _MORE.format(rest)] if rest else lines)


_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _MOST_OF_A_VALUE
_SHORT.maxlevel = 4
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxfrozenset = _SHORT.maxdict = 20


class MirrorsdError(Exception):
    """Base of every error that a user's input, files or machine can cause: whoever catches it catches them all."""

    def __init__(self, message: object = "") -> None:
        super().__init__(cut(str(message)))


class ConfigError(MirrorsdError):
    """A YAML file, schedule, setting or argument is wrong."""


class ProfileError(MirrorsdError):
    """A device, link or platform profile is wrong or missing."""


class OutOfRangeError(ProfileError):
    """A question lies outside the range that was measured; nothing is extrapolated silently."""


class PlanError(MirrorsdError):
    """No schedule satisfies what was asked."""


class RecordError(MirrorsdError):
    """An acceptance record is wrong, or does not cover the schedule to be replayed."""


class TraceError(MirrorsdError):
    """A trace is wrong, or two traces cannot be compared."""


class ModelError(MirrorsdError):
    """A model cannot be had or used."""


class ModelFetchError(ModelError):
    """A model could not be downloaded or placed in the cache."""


class ModelFormatError(ModelError):
    """A model's files are missing, damaged or contradict each other."""


class MemoryFitError(ModelError):
    """Models, their keys and values, and their branches need more memory than there is."""


class TrainingError(MirrorsdError):
    """The data, the recipe or the state of a training run is wrong."""


class LaneError(MirrorsdError):
    """A lane could not do its work; `tokens` are the new ones committed until then, if any."""

    def __init__(self, message: object = "", *, tokens: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.tokens = tuple(tokens)


class LaneDiedError(LaneError):
    """A lane's process ended, or its device failed."""


class LaneTimeoutError(LaneError):
    """A lane did not answer in time."""
