"""Parses the settings of published speeds in the words of their sources: `3`, `K=3`, `8k`, `n=3 at 16k`, `code`."""

import re
from typing import Final, NamedTuple

LARGEST_WINDOW: Final = 64
"""Larger numbers are cached tokens, not drafted ones."""
FORMS: Final = "a number drafted (3, K=3), cached tokens (8k, 4096), both (3 at 8k), or words without digits"
_GROUPS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_BETWEEN: Final = re.compile(r"\s*(?:[,;/@]|\bat\b)\s*", re.IGNORECASE)
_DRAFTED: Final = re.compile(
    r"(?:-{0,2}(?:k|n|gamma|\u03b3|drafted|window|mtp|(?:num_)?steps|n[_-](?:max|draft)|num_speculative_tokens"
    r"|(?:num_|spec-)?draft(?:[_ -](?:tokens|(?:n-)?max|length))?|tree(?:[ _-](?:of|size))?)[\s=:_-]*)?"
    r"(0|[1-9]\d?)(?:\s+(?:drafted|(?:draft )?tokens|steps))?",
    re.IGNORECASE,
)
_TEXTS: Final = re.compile(r"gsm-?8k|math-?500", re.IGNORECASE)
"""Names of data sets whose digits are no setting."""
_CACHED: Final = re.compile(r"(?:(\D*)[\s=:])?((?!0\d)\d{1,9}(?:\.\d+)?)(\s?k)?(?:\s(\D*))?", re.IGNORECASE)
"""Numbers do not begin with 0: YAML reads `{4,096: 120}` as two keys, and the second must not count as 96."""
_OF_CACHED: Final = (
    *("tokens", "cached", "context", "ctx", "depth", "prompt", "length", "input", "kv"),
    *("after", "of", "in"),
)
"""Words beside a number of cached tokens. Beside other words (`batch 128`) a number counts only if it ends in `k`."""
_IN_NOTE: Final = re.compile(r"(?<![\d,./])(?<!\bof )(\d{1,2}) drafted(?: (?:a|per|at a) \w+)?\s*(?=$|[;,.)])")
"""`4 drafted` at the end of a clause; `12 of 20 drafted` and `1,000 drafted tokens accepted` are something else."""
_LEAST_CONFIDENCE: Final = re.compile(r"\bp[_-]?min[\s=:]*(\d*\.?\d+)", re.IGNORECASE)
_ENDS_EARLY: Final = re.compile(
    r"\bconfidence\b(?! (?:interval|level))|\bat most \d+ drafted|(?<!spec-)\bdraft-(?:n-)?max\b", re.IGNORECASE
)
"""Signs of early stopping. `--draft-max` is an option of older llama.cpp, which stops below a confidence of 0.75;
versions with `--spec-draft-n-max` do not stop by default."""
_NUMBERS: Final = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}
_TREE: Final = re.compile(r"\btree(?: of|[ _-]size)?[\s=:]*(\d{1,2})\b", re.IGNORECASE)
_VERIFIED: Final = re.compile(r"\b(?:num[_-]?)?draft[_-]tokens[\s=:]*(\d{1,2})\b", re.IGNORECASE)
_BEST: Final = re.compile(r"\b(?:eagle[_-])?top[_-]?k[\s=:]*(\d{1,2})\b", re.IGNORECASE)
_STEPS: Final = re.compile(rf"steps[\s=:]*(\d{{1,2}})\b|\b(\d{{1,2}}|{'|'.join(_NUMBERS)}) steps", re.IGNORECASE)


class Setting(NamedTuple):
    """Drafted tokens, cached tokens, and other words in alphabetical order; None for what is not stated."""

    drafted: int | None = None
    context: int | None = None
    words: str | None = None

    def holds(self, of: "Setting") -> bool:
        """Return whether this setting states anything, and nothing that `of` does not state too."""
        return self != Setting() and all(own is None or own == its for own, its in zip(self, of, strict=True))


def setting_of(key: str) -> Setting | None:
    """Return the setting that a key states; None if the meaning of a number in it is not clear."""
    parts = [_read(part) for part in _BETWEEN.split(_GROUPS.sub("", key))]
    told = [part for part in parts if part is not None]
    drafted = [one[0] for one in told if one[0] is not None]
    context = [one[1] for one in told if one[1] is not None]
    words = sorted(word for one in told for word in one[2])
    if len(told) < len(parts) or len(drafted) > 1 or len(context) > 1:
        return None
    return Setting(next(iter(drafted), None), next(iter(context), None), " ".join(words) or None)


def _read(part: str) -> tuple[int | None, int | None, list[str]] | None:
    """Return (drafted tokens, cached tokens, other words) of a part of a key; None if its number is something else."""
    if re.search(r"\d", _TEXTS.sub("", part)) is None:
        return None, None, _words(part)
    drafted = _DRAFTED.fullmatch(part)
    if drafted is not None and int(drafted[1]) <= LARGEST_WINDOW:
        return int(drafted[1]), None, []
    cached = _CACHED.fullmatch(part)
    if cached is None:
        return None
    before, number, in_thousands, after = cached.groups()
    others = [word for word in _words(f"{before or ''} {after or ''}") if word not in _OF_CACHED]
    tokens = round(float(number) * 1024) if in_thousands else float(number)
    is_cached = tokens > LARGEST_WINDOW and tokens == int(tokens) and (in_thousands or not others)
    return (None, int(tokens), others) if is_cached else None


def _words(text: str) -> list[str]:
    return [word for one in text.casefold().split() if (word := one.strip(":=()"))]


def drafted_by(note: str) -> int | None:
    """Return the number of drafted tokens that a note states; None if it states none."""
    found = _IN_NOTE.search(note)
    return int(found[1]) if found and 1 <= int(found[1]) <= LARGEST_WINDOW else None


def ends_early(text: str) -> bool:
    """Return whether, by a key or note, drafting stops at an unsure token: the number of drafted tokens is a limit."""
    least = _LEAST_CONFIDENCE.search(text)
    return float(least[1]) > 0 if least else _ENDS_EARLY.search(text) is not None


class ToldTree(NamedTuple):
    """A stated tree: verified tokens and, where stated, the steps that draft it and the children of each node."""

    size: int
    num_steps: int | None = None
    top_k: int | None = None


def tree_of(text: str) -> ToldTree | None:
    """Return the tree that a key or note states: `tree of 64`, `steps 5 topk 8 num-draft-tokens 64`."""
    best, steps = _BEST.search(text), _STEPS.search(text)
    size = _TREE.search(text) or (_VERIFIED.search(text) if best and int(best[1]) > 1 else None)
    if size is None or not 2 <= int(size[1]) <= LARGEST_WINDOW:
        return None
    told = (steps[1] or steps[2]).lower() if steps else None
    num_steps = None if told is None else _NUMBERS[told] if told in _NUMBERS else int(told)
    return ToldTree(int(size[1]), num_steps or None, (int(best[1]) or None) if best else None)
