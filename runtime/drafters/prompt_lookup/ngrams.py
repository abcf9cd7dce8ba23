"""Where the last tokens of a text occurred before, and what followed them there."""

from __future__ import annotations

from collections.abc import Sequence


class NgramIndex:
    """A growing text in which its own last tokens are looked up: every search takes the same time however long it is.

    The longest n-gram that occurred before counts; of its occurrences the most recent one.
    """

    def __init__(self, *, min_ngram: int, max_ngram: int) -> None:
        """`min_ngram` and `max_ngram` bound the number of tokens that have to agree, 1 <= min <= max."""
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._text: list[int] = []
        self._followed_at: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the text."""
        for token in tokens:
            end = len(self._text)
            for size in self._sizes:
                if size <= end:
                    self._followed_at[tuple(self._text[end - size :])] = end
            self._text.append(token)

    def continuation(self, num_tokens: int) -> tuple[int, ...]:
        """The next tokens if the text repeats itself; none if its end is new.

        What would follow beyond the text's end is read from the continuation itself, as of a text with a period.
        """
        for size in self._sizes:
            start = self._followed_at.get(tuple(self._text[-size:])) if size <= len(self._text) else None
            if start is not None:
                found = self._text[start : start + num_tokens]
                period = len(self._text) - start
                while len(found) < num_tokens:
                    found.append(found[len(found) - period])
                return tuple(found)
        return ()
