"""What the models would say: which drafted tokens are accepted, and whether a branch was ready. Exact or drawn.

Both simulators ask the same object: the event world for the rounds of each prompt one by one, the evaluator for all
rounds of all prompts as arrays. `sim.acceptance.replay` answers from an acceptance record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from costs.cost_model import Ints
from costs.round_plan import RoundShape, tree_shape
from decoding.errors import ConfigError
from decoding.messages import NO_WINDOW, Verdict, Window
from decoding.schedule import MAX_WINDOW, Schedule
from sim.acceptance.rates import MOST_DRAWN_TOKENS
from sim.acceptance.stream_guesses import Guessing
from sim.acceptance.walk import Walk

MISS, FROM_DRAFT, FROM_EXIT = 0, 1, 2
"""Which source the branch with a round's outcome has, if there is one."""

NO_TOKEN = -1
"""In place of a token that nobody knows: the target's own one after the end of a recorded text."""


Answer = tuple[Window, Verdict, int]
"""A round as the models decide it: what is drafted, what is accepted, which source's branch has the outcome.

A plain tuple, since the event world asks for one in every round."""


class Answers(NamedTuple):
    """What the models decide of one prompt under one schedule: as many rounds as its `num_tokens` take, or more."""

    prompt_length: int
    num_tokens: int
    rounds: list[Answer]


class Acceptance(Protocol):
    """An acceptance model. `max_new_tokens` cuts all its sequences; None leaves them as they are."""

    @property
    def source(self) -> str:
        """Where the answers come from, in a few words."""
        ...

    def contexts(self, max_new_tokens: int | None) -> range:
        """Contexts in which a round may start, for all prompts together."""
        ...

    def missing(self, schedule: Schedule) -> str | None:
        """What the schedule asks for that nobody knows; None if nothing. What is missing is refused everywhere else."""
        ...

    def shape(self, schedule: Schedule) -> RoundShape:
        """The width of a round's operations."""
        ...

    def answers(self, schedule: Schedule, max_new_tokens: int | None) -> list[Answers]:
        """The rounds of every prompt, one by one."""
        ...

    def walk(self, schedule: Schedule, max_new_tokens: int | None) -> Walk:
        """All rounds of all prompts."""
        ...

    def branches(self, schedule: Schedule, walk: Walk) -> Ints:
        """`MISS`, `FROM_DRAFT` or `FROM_EXIT` for every round of `walk`, [rounds]; without meaning in last rounds."""
        ...

    def guessing(self, schedule: Schedule) -> Guessing | None:
        """The steps that the draft's own streams save; None for a schedule without."""
        ...


class DrawnAcceptance:
    """Drawn acceptance: one rate for each drafted place, given that all places before it were accepted.

    One rate for every place (Bernoulli) is the model of most analyses.

    Of a tree the places are its levels, and the rates are those of that very tree: they do not depend on its size.
    The draws belong to (seed, prompt, round) alone, so that all schedules meet the same draws. In a `hybrid`
    schedule hits are counted for the exit, whose branches start later.
    """

    def __init__(
        self,
        rates: float | Sequence[float],
        *,
        hit_rate: float,
        num_tokens: int,
        prompt_length: int = 1,
        num_prompts: int = 1,
        seed: int = 0,
    ) -> None:
        """`rates` may be a single one for all places; `num_tokens` are the new tokens of each prompt.

        Raises:
            ConfigError: a rate is no probability, or there is nothing to decode.
        """
        rates = (rates,) * MAX_WINDOW if isinstance(rates, int | float) else rates
        for rate in (*rates, hit_rate):
            if not 0 <= rate <= 1:
                msg = f"acceptance and hit rates lie in 0..1, found {rate}"
                raise ConfigError(msg)
        if min(num_tokens, prompt_length, num_prompts) < 1:
            msg = f"need at least one token, prompt token and prompt, not {num_tokens}, {prompt_length}, {num_prompts}"
            raise ConfigError(msg)
        if num_tokens * num_prompts > MOST_DRAWN_TOKENS:
            many = f"{num_prompts} texts of {num_tokens} tokens"
            msg = f"{many} are too many: at most {MOST_DRAWN_TOKENS:,} tokens are drawn"
            raise ConfigError(msg)
        self._rates = np.array(rates, dtype=np.float64)
        self._hit_rate = hit_rate
        self._num_tokens = num_tokens
        self._prompt_length = prompt_length
        randoms = (np.random.default_rng((seed, prompt)) for prompt in range(num_prompts))
        self._draws = np.stack([random.random((num_tokens, MAX_WINDOW + 1)) for random in randoms])

    @property
    def source(self) -> str:
        """See `Acceptance`."""
        rates = ", ".join(f"{rate:g}" for rate in self._rates)
        return f"acceptance drawn with rates {rates} and hit rate {self._hit_rate:g}"

    def contexts(self, max_new_tokens: int | None) -> range:
        """See `Acceptance`."""
        return range(self._prompt_length - 1, self._prompt_length - 1 + self._length(max_new_tokens))

    def missing(self, schedule: Schedule) -> str | None:
        """See `Acceptance`: what records alone know, and rates of windows that are too long."""
        traits, width = schedule.traits, schedule.num_speculative_tokens
        if traits.drafts_by_level:
            return f"acceptance is drawn, but the shape of {traits.name}'s trees is known to acceptance records only"
        if schedule.draft_streams:
            return "acceptance is drawn, but what a draft's streams guess is known to acceptance records only"
        if traits.finds_text:
            return "acceptance is drawn, but how much text is found is known to acceptance records only"
        if width > len(self._rates):
            return f"num_speculative_tokens is {width}, but acceptance is known for {len(self._rates)} drafted places"
        return None

    def shape(self, schedule: Schedule) -> RoundShape:
        """See `Acceptance`: every budget is filled."""
        self._check(schedule)
        if schedule.traits.has_dynamic_trees:
            return tree_shape(schedule, ())
        return RoundShape(schedule.num_rows - 1, sum(schedule.exit_roots_per_row))

    def answers(self, schedule: Schedule, max_new_tokens: int | None) -> list[Answers]:
        """See `Acceptance`."""
        length = self._length(max_new_tokens)
        accepted, branches = self._accepted(schedule).tolist(), self._branches(schedule).tolist()
        return [
            Answers(self._prompt_length, length, self._rounds(schedule, counts[:length], sources[:length]))
            for counts, sources in zip(accepted, branches, strict=True)
        ]

    def walk(self, schedule: Schedule, max_new_tokens: int | None) -> Walk:
        """See `Acceptance`."""
        length = self._length(max_new_tokens)
        advance = self._accepted(schedule) + 1
        position = np.cumsum(advance, axis=1) - advance
        prompt, rounds = np.nonzero(position < length)
        start, step = position[prompt, rounds], advance[prompt, rounds]
        has_window = (rounds > 0) | (not schedule.traits.drafts_itself)
        return Walk(
            prompt=prompt,
            position=start,
            context=start + self._prompt_length - 1,
            num_drafted=np.where(has_window, self.shape(schedule).num_drafted, 0),
            num_accepted=step - 1,
            num_committed=np.minimum(step, length - start),
            is_first=rounds == 0,
            is_last=start + step >= length,
            contexts=self.contexts(max_new_tokens),
            num_prompts=len(advance),
        )

    def branches(self, schedule: Schedule, walk: Walk) -> Ints:
        """See `Acceptance`."""
        starts = np.flatnonzero(walk.is_first)
        rounds = np.arange(len(walk.prompt)) - starts[walk.prompt]
        branches: Ints = self._branches(schedule)[walk.prompt, rounds]
        return branches

    def guessing(self, schedule: Schedule) -> None:
        """See `Acceptance`."""
        self._check(schedule)

    def _check(self, schedule: Schedule) -> None:
        if reason := self.missing(schedule):
            raise ConfigError(reason)

    def _rounds(self, schedule: Schedule, counts: list[int], branches: list[int]) -> list[Answer]:
        """The rounds of a prompt; of a tree its first nodes are taken to be the ones that follow each other."""
        num_drafted, is_tree = self.shape(schedule).num_drafted, schedule.is_tree
        window = Window((NO_TOKEN,) * num_drafted, parents=tuple(range(-1, num_drafted - 1)) if is_tree else ())
        brought = window if schedule.traits.drafts_itself else None
        verdicts = [Verdict(n, NO_TOKEN, path=tuple(range(n)) if is_tree else (), window=brought) for n in counts]
        windows = [window if brought is None else NO_WINDOW, *[window] * (len(counts) - 1)]
        return list(zip(windows, verdicts, branches, strict=True))

    def _length(self, max_new_tokens: int | None) -> int:
        if max_new_tokens is None:
            return self._num_tokens
        if max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is {max_new_tokens}, it must be at least 1")
        return min(self._num_tokens, max_new_tokens)

    def _accepted(self, schedule: Schedule) -> Ints:
        """Accepted tokens by prompt and round."""
        self._check(schedule)
        width = schedule.num_speculative_tokens
        is_accepted = self._draws[:, :, :width] < self._rates[:width]
        counts: Ints = np.cumprod(is_accepted, axis=2, dtype=np.int64).sum(axis=2)
        if schedule.traits.drafts_itself:
            counts[:, 0] = 0  # nothing has been drafted yet
        return np.minimum(counts, self.shape(schedule).num_drafted)

    def _branches(self, schedule: Schedule) -> Ints:
        found = FROM_EXIT if schedule.uses_exit else FROM_DRAFT
        return np.where(self._draws[:, :, -1] < self._hit_rate, found, MISS)
