"""The messages between a method and its lanes, the same in simulated and in real runs.

They are named tuples rather than dataclasses because a simulator creates hundreds of thousands of them a second. Token
ids are always ids of the target's vocabulary.
"""

from typing import Any, NamedTuple

Outcome = tuple[int, int]
"""(num_accepted, next_token): the result of a round, and the key under which its branch is looked up."""


NUM_SAMPLED_FROM = 64
"""Number of ids that a sampling draft chooses among; with their probabilities they are less than 1 kB per token."""


class Candidates(NamedTuple):
    """A truncated distribution over target ids, best first; `probabilities` sum to one after truncation."""

    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]


class Window(NamedTuple):
    """Drafted tokens to verify: a chain or a tree; empty if the drafter proposes nothing.

    Attributes:
        alternatives: for each row 0..len(tokens) - 1, the draft's best ids, the drafted one included; draft-sourced
            roots are chosen from them.
        distributions: for each drafted token, the distribution it was *sampled* from; empty for greedy drafts.
        parents: for each token of a tree, the index of its parent in `tokens`, or -1 if it follows the last committed
            token. Parents come before children; siblings are distinct, best first. Empty for a chain.
    """

    tokens: tuple[int, ...]
    alternatives: tuple[tuple[int, ...], ...] = ()
    distributions: tuple[Candidates, ...] = ()
    parents: tuple[int, ...] = ()

    def first(self, count: int) -> "Window":
        """Return the first `count` tokens of a chain as a window."""
        return Window(self.tokens[:count], self.alternatives[:count], self.distributions[:count])

    def accepted(self, verdict: "Verdict") -> tuple[int, ...]:
        """Return the drafted tokens that are accepted."""
        if not self.parents:
            return self.tokens[: verdict.num_accepted]
        return tuple(self.tokens[node] for node in verdict.path)


NO_WINDOW = Window(())
"""The empty window, whose verification gives one token: for plain decoding, and the reply of a lost draft lane."""


class ExitSignal(NamedTuple):
    """An early exit's message: for each of the len(window) + 1 verified rows its ids, best first, and log-probs.

    Logits are never sent; the log-probs are over the exit's reduced vocabulary. `features` are the rows' hidden states,
    for a draft model that reads them.
    """

    candidates: tuple[tuple[int, ...], ...]
    log_probs: tuple[tuple[float, ...], ...] = ()
    features: Any = None


class Verdict(NamedTuple):
    """The target's decision on a window.

    Attributes:
        num_accepted: number of accepted drafted tokens.
        next_token: the target's token after them: the correction after a refusal, else the bonus token.
        features: as in `ExitSignal`, for the rows of the last committed token and of the accepted tokens.
        path: for a tree, the indices of the accepted tokens in the window; empty for a chain.
        window: the next window, if the target drafts for itself (`stream`).
    """

    num_accepted: int
    next_token: int
    features: Any = None
    path: tuple[int, ...] = ()
    window: Window | None = None


class Root(NamedTuple):
    """The outcome that a branch prepares for: the first `row` drafted tokens accepted, then `token`."""

    row: int
    token: int
