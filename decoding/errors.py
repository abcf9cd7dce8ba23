"""The exception tree for errors that a user can cause, and helpers that write their messages.

A message names the file (if there is one), the value found and the valid values, and has at most `MOST_CHARACTERS`
characters. Broken invariants of our code are plain ``assert``s and not in this tree.
"""

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Any, Final

MOST_CHARACTERS: Final = 500
"""Longest message; the middle of a longer one is left out, since its beginning has the file and the line."""
_MOST_OF_A_VALUE: Final = 200
_ENDING: Final = 120
_GAP: Final = " [...] "
_FEW: Final = 8
"""A message lists all valid names, rather than the most similar ones, if there are at most this many."""
_MANY, _NEAREST = 60, 5
"""Of more than `_MANY` names a message lists the `_NEAREST` most similar ones."""
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
"""Replacements for phrases of pydantic's messages that speak of Python types."""


def shown(value: object) -> str:
    """Return the `repr` of a value for a message, shortened if it is long or deeply nested."""
    try:
        return cut(_SHORT.repr(value), _MOST_OF_A_VALUE)
    except ValueError:  # an integer of thousands of digits has no decimal form
        return f"a huge {type(value).__name__}"


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return the text, without its middle if it has more than `most` characters."""
    if len(text) <= most:
        return text
    ending = min(_ENDING, most // 4)
    return text[: most - ending - len(_GAP)] + _GAP + text[-ending:]


def unknown(what: str, name: object, choices: Iterable[str]) -> str:
    """Return the message for an unknown name: it suggests similar names, or lists the valid ones."""
    names = list(choices)
    name_by_key: dict[str, str] = {_key(valid): valid for valid in reversed(names)}
    asked = _key(str(name))

    def likeness(key: str) -> tuple[float, float]:
        return _likeness(key, asked), _likeness(name_by_key[key].lower(), str(name).lower())

    close = get_close_matches(asked, name_by_key, n=len(name_by_key), cutoff=0.7) if asked and name_by_key else []
    similar = sorted(close, key=likeness, reverse=True)[:3]
    similar += [key for key in name_by_key if len(asked) > 1 and asked in key and key not in similar]
    if similar and len(names) > _FEW:
        suggestions = " or ".join(name_by_key[key] for key in similar[:3])
        return f"no {what} is called {shown(name)}; did you mean {suggestions}?"
    if len(names) > _MANY:
        nearest = [name_by_key[key] for key in get_close_matches(asked, name_by_key, n=_NEAREST, cutoff=0.0)]
        choices_text = f"{', '.join(nearest)} and {len(names) - len(nearest)} others, less like it"
        return f"no {what} is called {shown(name)}; there are {choices_text}"
    return f"no {what} is called {shown(name)}; there are {', '.join(names)}"


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def _key(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def mistake(item: Mapping[str, Any]) -> str:
    """Return one entry of pydantic's `ValidationError.errors()` in words: field, what is wrong, value found."""
    place = ".".join(filter(None, map(str, item["loc"]))) or "(whole file)"
    return f"{cut(place, _MOST_OF_A_VALUE)}: {wrong(item)}"


def wrong(item: Mapping[str, Any]) -> str:
    """Return the words of `mistake` without the field."""
    value = item.get("input")
    found = "" if isinstance(value, dict | list) else f", found {shown(value)}"
    what = str(item["msg"]).removeprefix("Value error, ")
    for words, ours in _PLAIN:
        what = words.sub(ours, what)
    return f"{cut(what, _MOST_OF_A_VALUE)}{found}"


def listed(mistakes: Sequence[str], *, num_others: int = 0) -> str:
    """Return the mistakes that fit into a message, a line each, and how many more there are (with `num_others`)."""
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
    """Base of every error that a user's input, files or machine can cause."""

    def __init__(self, message: object = "") -> None:
        super().__init__(cut(str(message)))


class ConfigError(MirrorsdError):
    """A YAML file, schedule, setting or argument is wrong."""


class ProfileError(MirrorsdError):
    """A device, link or platform profile is wrong or missing."""


class OutOfRangeError(ProfileError):
    """A time was asked for outside the measured range; nothing is extrapolated silently."""


class PlanError(MirrorsdError):
    """No schedule meets the requirements."""


class RecordError(MirrorsdError):
    """An acceptance record is wrong, or does not cover the schedule to be replayed."""


class TraceError(MirrorsdError):
    """A trace is wrong, or two traces cannot be compared."""


class ModelError(MirrorsdError):
    """A model cannot be loaded or used."""


class ModelFetchError(ModelError):
    """A model could not be downloaded or placed in the cache."""


class ModelFormatError(ModelError):
    """A model's files are missing, damaged or contradict each other."""


class MemoryFitError(ModelError):
    """The models with their KV caches and branches need more memory than there is."""


class TrainingError(MirrorsdError):
    """The data, the recipe or the state of a training run is wrong."""


class LaneError(MirrorsdError):
    """A lane could not do its work; `tokens` are the new tokens that were committed before, if any."""

    def __init__(self, message: object = "", *, tokens: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.tokens = tuple(tokens)


class LaneDiedError(LaneError):
    """A lane's process ended, or its device failed."""


class LaneTimeoutError(LaneError):
    """A lane did not answer in time."""
