"""Runs with a known text and given acceptance, in which the models, mostly with random weights, do all their work.

The target's and the draft's tokens depend on their position alone: both give the text, except that the draft gives
another token where one is to be refused. Windows, verdicts and kept keys then follow from the rules as always, and hits
and misses from whether draft and exit offer the text's token as a root.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import TYPE_CHECKING

from decoding.errors import ConfigError

if TYPE_CHECKING:  # `benchmarks/gpu.py` runs back ends with torch alone, without pydantic
    from decoding.schedule import Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedText:
    """The tokens at every position after the prompt; beyond their end the models choose.

    `drafted` differs from `text` where the draft's token is to be refused. `in_draft` and `in_exit` say whether the
    draft and the exit offer the text's token as the root of a branch.
    """

    prompt_length: int
    text: tuple[int, ...]
    drafted: tuple[int, ...]
    in_draft: tuple[bool, ...]
    in_exit: tuple[bool, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.text), len(self.drafted), len(self.in_draft), len(self.in_exit)}
        assert len(lengths) == 1, f"parts of a replayed text have lengths {sorted(lengths)}"

    def cut(self, num_tokens: int) -> "ReplayedText":
        """Return the replay of the first `num_tokens` tokens."""
        parts = {name: getattr(self, name)[:num_tokens] for name in ("text", "drafted", "in_draft", "in_exit")}
        return replace(self, **parts)

    def target_token(self, position: int, own: int) -> int:
        """Return the target's token at a position; `own` is the model's choice."""
        place = position - self.prompt_length
        return self.text[place] if place < len(self.text) else own

    def draft_token(self, position: int, own: int) -> int:
        """Return the draft's token at a position; `own` is the model's choice."""
        place = position - self.prompt_length
        return self.drafted[place] if place < len(self.drafted) else own

    def draft_alternatives(self, position: int, own: Sequence[int]) -> tuple[int, ...]:
        """Return the draft's candidates for a position, its drafted token included: as many as `own`, the model's."""
        place = position - self.prompt_length
        if place >= len(self.text):
            return tuple(own)
        offered = [self.text[place]] if self.in_draft[place] else []
        return _edited(own, [*offered, self.drafted[place]], self.text[place])

    def exit_candidates(self, position: int, own: Sequence[int]) -> tuple[int, ...]:
        """Return an exit's candidates for a position: as many as `own`, the model's."""
        place = position - self.prompt_length
        if place >= len(self.text):
            return tuple(own)
        return _edited(own, [self.text[place]] if self.in_exit[place] else [], self.text[place])


def require_replayable(schedule: "Schedule", prompt: Sequence[int], replay: ReplayedText, vocab_size: int) -> None:
    """Raise `ConfigError` for windows not of a draft model, and for a prompt or tokens that do not fit the replay."""
    traits = schedule.traits
    if not (traits.has_draft_model or traits.window == "none"):
        raise ConfigError(f"method is {schedule.method}: acceptance is replayed only for chains of a draft model")
    if schedule.draft_streams:
        raise ConfigError(f"draft_streams is {schedule.draft_streams}: what streams guess is not replayed")
    if len(prompt) != replay.prompt_length:
        raise ConfigError(f"the prompt has {len(prompt)} tokens, that of the replay {replay.prompt_length}")
    if not all(0 <= token < vocab_size for token in (*replay.text, *replay.drafted)):
        raise ConfigError(f"the replayed text has tokens outside of the target's 0..{vocab_size - 1}")


def _edited(own: Sequence[int], first: Sequence[int], word: int) -> tuple[int, ...]:
    """Return as many different ids as `own` has: `first`, then others of `own`, but `word` only if it is in `first`."""
    others = [token for token in own if token != word and token not in first]
    spare = (token for token in count() if token != word and token not in first and token not in others)
    return tuple(islice(chain(dict.fromkeys(first), others, spare), len(own)))
