"""Settings of a speed, as sources name them: `3`, `K=3`, `8k`, `4,096 tokens`, `n=3 at 16k`, `code`."""

import re
from typing import Final, NamedTuple

LARGEST_WINDOW: Final = 64
"""A number above it is of cached tokens."""
FORMS: Final = "a number drafted (3, K=3), cached tokens (8k, 4096), both (3 at 8k), or words without digits"
_GROUPS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_BETWEEN: Final = re.compile(r"\s*(?:[,;/@]|\bat\b)\s*", re.IGNORECASE)
_DRAFTED: Final = re.compile(
    r"(?:-{0,2}(?:k|n|gamma|\u03b3|drafted|window|mtp|(?:num_)?steps|n[_-](?:max|draft)|num_speculative_tokens"
    r"|(?:num_)?draft(?:[_ -](?:tokens|max|length))?)[\s=:_-]*)?"
    r"(0|[1-9]\d?)(?:\s+(?:drafted|(?:draft )?tokens|steps))?",
    re.IGNORECASE,
)
_TEXTS: Final = re.compile(r"gsm-?8k|math-?500", re.IGNORECASE)
"""Names of texts with digits that count nothing here."""
_CACHED: Final = re.compile(r"(?:(\D*)[\s=:])?((?!0\d)\d{1,9}(?:\.\d+)?)(\s?k)?(?:\s(\D*))?", re.IGNORECASE)
"""No number begins with 0: YAML takes `{4,096: 120}` for two keys, of which the second would be 96."""
_OF_CACHED: Final = (
    *("tokens", "cached", "context", "ctx", "depth", "prompt", "length", "input", "kv"),
    *("after", "of", "in"),
)
"""Words beside a number of cached tokens; beside others (`batch 128`) it may be of anything unless it ends in `k`."""
_IN_NOTE: Final = re.compile(r"(?<![\d,./])(?<!\bof )(\d{1,2}) drafted(?: (?:a|per|at a) \w+)?\s*(?=$|[;,.)])")
"""At the end of a clause: `600 of 1,000 drafted tokens accepted` is of something else, as `12 of 20 drafted` is."""


class Setting(NamedTuple):
    """Tokens drafted, cached ones before them, and other words, in order of letters; None of what is not told."""

    drafted: int | None = None
    context: int | None = None
    words: str | None = None

    def holds(self, of: "Setting") -> bool:
        """Return whether it tells something, and nothing else than another."""
        return self != Setting() and all(own in (None, its) for own, its in zip(self, of, strict=True))


def setting_of(key: str) -> Setting | None:
    """Return what a key tells; None where a number in it may be of anything."""
    parts = [_read(part) for part in _BETWEEN.split(_GROUPS.sub("", key))]
    told = [part for part in parts if part is not None]
    drafted = [one[0] for one in told if one[0] is not None]
    context = [one[1] for one in told if one[1] is not None]
    words = sorted(word for one in told for word in one[2])
    if len(told) < len(parts) or len(drafted) > 1 or len(context) > 1:
        return None
    return Setting(next(iter(drafted), None), next(iter(context), None), " ".join(words) or None)


def _read(part: str) -> tuple[int | None, int | None, list[str]] | None:
    """Return tokens drafted, cached ones and other words of a part of a key; None of a number of something else."""
    if re.search(r"\d", _TEXTS.sub("", part)) is None:
        return None, None, _words(part)
    if (small := _DRAFTED.fullmatch(part)) is not None and int(small[1]) <= LARGEST_WINDOW:
        return int(small[1]), None, []
    if (large := _CACHED.fullmatch(part)) is None:
        return None
    others = [word for word in _words(f"{large[1] or ''} {large[4] or ''}") if word not in _OF_CACHED]
    tokens = round(float(large[2]) * 1024) if large[3] else float(large[2])
    is_cached = tokens > LARGEST_WINDOW and tokens == int(tokens) and not (others and not large[3])
    return (None, int(tokens), others) if is_cached else None


def _words(text: str) -> list[str]:
    return [word for one in text.casefold().split() if (word := one.strip(":=()"))]


def drafted_by(note: str) -> int | None:
    """Return the number drafted that a note tells; None of any other."""
    told = _IN_NOTE.search(note)
    return int(told[1]) if told and 1 <= int(told[1]) <= LARGEST_WINDOW else None
