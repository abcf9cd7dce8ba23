"""Replays recorded trees: which nodes of a drafted tree are accepted, known by their places in its order.

Only nodes that hold the text are recorded. The others are there, so that windows have their real width, but
nobody knows their tokens, nor their parents.
"""

from __future__ import annotations

from typing import NamedTuple

from decoding.messages import NO_WINDOW, Verdict, Window
from sim.acceptance.acceptance_model import MISS, NO_TOKEN, Answer


class TreeAnswers(NamedTuple):
    """One prompt of a replay; the lists are those of all prompts, in which this one begins at `start`.

    Attributes:
        prompt_length, num_tokens: as in `sim.acceptance.acceptance_model.Answers`.
        start, end: where the prompt's text lies in the lists.
        num_drafted: nodes of a tree.
        has_streams: whether the target drafts itself: then nothing is drafted at first, and verdicts bring windows.
        text: the tokens.
        ranks: places of the text's next tokens in the tree drafted there.
        num_accepted, next_token: of a round that starts there.
    """

    prompt_length: int
    num_tokens: int
    start: int
    end: int
    num_drafted: int
    has_streams: bool
    text: list[int]
    ranks: list[list[int]]
    num_accepted: list[int]
    next_token: list[int]

    def at(self, position: int, round_index: int) -> Answer:  # noqa: ARG002
        """See `Answers`."""
        place = self.start + position
        num_accepted = self.num_accepted[place]
        verdict = Verdict(num_accepted, self.next_token[place], path=tuple(self.ranks[place][:num_accepted]))
        if not self.has_streams:
            return self._window(place), verdict, MISS
        window = self._window(place) if position else NO_WINDOW
        return window, verdict._replace(window=self._window(place + num_accepted + 1)), MISS

    def _window(self, place: int) -> Window:
        """The tree drafted at a place of the text, none after its end."""
        if place >= self.end:
            return NO_WINDOW
        tokens, parents, parent = [NO_TOKEN] * self.num_drafted, [-1] * self.num_drafted, -1
        for offset, node in enumerate(self.ranks[place][: self.num_accepted[place]]):
            tokens[node], parents[node], parent = self.text[place + offset], parent, node
        return Window(tuple(tokens), parents=tuple(parents))
