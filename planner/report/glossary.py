"""The words of the page that a newcomer does not know, each explained once, where it first stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from markupsafe import Markup, escape

GLOSSARY: Final[Mapping[str, str]] = {
    "target": "the model whose text is wanted; it checks every drafted token",
    "draft": "the small model, or the heads, that guess the next tokens for the target to check in one pass",
    "plain": "the target alone, one pass per token",
    "synchronous": "draft and target take turns",
    "tree": "several guesses per position, checked together",
    "mirror": "the draft goes on from likely outcomes while the target is still checking",
    "window": "the drafted tokens that the target checks together in one pass",
    "round": "one check by the target, and the tokens it commits",
    "acceptance": "how often the target keeps what was drafted",
    "branch": "a drafted continuation of one likely outcome of a check",
    "root": "the token that a branch starts from",
    "exit": "a layer of the target after which likely tokens are read early, before its pass is done",
    "exit features": "the target's inner states at the exit, which a draft may read",
    "hit": "the outcome was among those that had been prepared, so the next window is ready",
    "miss": "the outcome was not among those that had been prepared, so drafting starts again",
    "lane": "the cores or the device that a model runs on",
    "split": "a lane for each model",
    "pooled": "one larger lane that both models share",
    "anchor": "a check of one token that is timed again and again, so that a change of the machine's speed is seen",
    "speed of the anchors": "measured times as they would be, had the machine kept the speed that it had during "
    "calibration",
}
"""What each word means, in the order in which the list at the end of the page has them."""

EXPLAINED_IN_PLACE: Final = (
    "root",
    "branch",
    "exit",
    "exit features",
    "pooled",
    "split",
    "window",
    "hit",
    "miss",
    "acceptance",
    "anchor",
    "speed of the anchors",
)
"""Those that get a mark where they first stand; the others are common enough for the list alone."""

_PLURAL: Final = {"branch": "branch(?:es)?", "miss": "miss(?:es)?"}


class Explainer:
    """Marks each word where one page first uses it; a tap or a key press on it shows what it means."""

    def __init__(self) -> None:
        """Nothing is explained yet."""
        longest_first = sorted(EXPLAINED_IN_PLACE, key=len, reverse=True)
        forms = (f"(?P<w{EXPLAINED_IN_PLACE.index(word)}>{_PLURAL.get(word, f'{word}s?')})" for word in longest_first)
        self._words = re.compile(rf"\b(?:{'|'.join(forms)})\b", re.IGNORECASE)
        self._seen: set[str] = set()

    def explained(self, text: str) -> Markup:
        """`text`, escaped, its new words followed by what they mean, which is hidden until it is asked for."""
        parts, end = [], 0
        for found in self._words.finditer(text):
            word = EXPLAINED_IN_PLACE[int(str(found.lastgroup).removeprefix("w"))]
            if word in self._seen:
                continue
            self._seen.add(word)
            parts += [escape(text[end : found.start()]), _term(found.group(), GLOSSARY[word])]
            end = found.end()
        return Markup("").join([*parts, escape(text[end:])])


def _term(shown: str, meaning: str) -> Markup:
    button = Markup('<button type="button" class="term" aria-expanded="false">{}</button>').format(shown)
    return button + Markup('<span class="meaning" hidden> ({})</span>').format(meaning)
