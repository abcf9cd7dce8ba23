"""What travels between a method and the lanes: the replies of both worlds.

Named tuples rather than dataclasses: a simulator creates several per round, hundreds of thousands of times a
second. Token ids are ids of the target's vocabulary everywhere.
"""

from typing import Any, NamedTuple

Outcome = tuple[int, int]
"""(num_accepted, next_token): what a round ends with, and the key under which a branch is found."""


NUM_SAMPLED_FROM = 64
"""Ids a sampled draft chooses among; with their probabilities they cross the channel in less than 1 kB."""


class Candidates(NamedTuple):
    """A truncated distribution over target ids, best first; `probabilities` sum to one after truncation."""

    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]


class Window(NamedTuple):
    """Drafted tokens on their way to verification: a chain, or a tree of them; empty where the draft has none to offer.

    Attributes:
        alternatives: for each row 0..len(tokens) - 1, the draft's best ids, its drafted token included: the source of
            draft-sourced roots.
        distributions: for each drafted token the distribution it was *sampled* from; empty for greedy drafts.
        parents: for each token of a tree the place in `tokens` of the one it follows, -1 for the last committed
            token. Parents come before children; siblings differ, the best one first. Empty for a chain.
    """

    tokens: tuple[int, ...]
    alternatives: tuple[tuple[int, ...], ...] = ()
    distributions: tuple[Candidates, ...] = ()
    parents: tuple[int, ...] = ()

    def first(self, count: int) -> "Window":
        """Return the first tokens of a chain as a window."""
        return Window(self.tokens[:count], self.alternatives[:count], self.distributions[:count])

    def accepted(self, verdict: "Verdict") -> tuple[int, ...]:
        """Return the drafted tokens that are accepted."""
        if not self.parents:
            return self.tokens[: verdict.num_accepted]
        return tuple(self.tokens[node] for node in verdict.path)


NO_WINDOW = Window(())
"""Empty: the pass yields one token. Plain decoding verifies it, and a lost draft lane replies it."""


class ExitSignal(NamedTuple):
    """What the early exit sends for each of the len(window) + 1 verified rows: ids, best first, and their log-probs.

    Logits are never sent; log-probs are under the exit's reduced vocabulary. `features` are hidden rows for a draft
    that asks for them.
    """

    candidates: tuple[tuple[int, ...], ...]
    log_probs: tuple[tuple[float, ...], ...] = ()
    features: Any = None


class Verdict(NamedTuple):
    """The target's decision on a window: accepted drafted tokens, then its own token, a correction or a bonus.

    Attributes:
        features: as in `ExitSignal`, of the last committed token's row and of the accepted rows.
        path: places in the window of the accepted tokens, for a tree; empty for a chain.
        window: the next one, where the target drafts it itself (`stream`).
    """

    num_accepted: int
    next_token: int
    features: Any = None
    path: tuple[int, ...] = ()
    window: Window | None = None


class Root(NamedTuple):
    """Where a branch starts: after the first `row` drafted tokens, with `token` as the target's next one."""

    row: int
    token: int
