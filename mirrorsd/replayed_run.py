"""Runs of real lanes whose acceptance is known before: that of a record of another pair, or drawn with given rates.

The same rounds are played as by both simulators, since the same object answers (`sim.acceptance`): so a model that is
there as a shape alone, with random weights, runs schedules from end to end. Its text means nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runtime.verification.replayed_text import ReplayedText
from sim.acceptance.acceptance_model import FROM_DRAFT, FROM_EXIT, NO_TOKEN
from sim.acceptance.replay import as_acceptance

if TYPE_CHECKING:
    from decoding.record import AcceptanceRecord
    from decoding.schedule import Schedule
    from sim.acceptance.acceptance_model import Acceptance, Answers

_STRIDE: Final = 7919
"""Prime, so that the ids of an arbitrary text visit the whole vocabulary."""


def replayed_texts(
    acceptance: Acceptance | AcceptanceRecord,
    schedule: Schedule,
    *,
    vocab_size: int,
    max_new_tokens: int | None = None,
) -> list[ReplayedText]:
    """What the models have to say so that a schedule goes through the rounds of an acceptance model, for every prompt.

    Args:
        acceptance: whose rounds; a record is replayed.
        schedule: how; its lanes and drafter do not matter.
        vocab_size: of the models that are to say it. Ids that it lacks, and those that nobody knows, become others.
        max_new_tokens: cut of every text.

    Raises:
        RecordError: the record does not cover the schedule.
        ConfigError: the rates do not.
    """
    answers = as_acceptance(acceptance).answers(schedule, max_new_tokens)
    return [_text(one, vocab_size) for one in answers]


def arbitrary_prompt(length: int, vocab_size: int) -> tuple[int, ...]:
    """Token ids for a prompt of which the length alone is known."""
    return tuple((place + 1) * _STRIDE % vocab_size for place in range(length))


def _text(answers: Answers, vocab_size: int) -> ReplayedText:
    text, drafted, sources = list[int](), list[int](), list[int]()
    for window, verdict, source in answers.rounds:
        if len(text) >= answers.num_tokens:
            break
        accepted = window.tokens[: verdict.num_accepted]
        text += [_within(token, len(text) + place, vocab_size) for place, token in enumerate(accepted)]
        drafted += text[len(drafted) :]
        text.append(_within(verdict.next_token, len(text), vocab_size))
        refused = window.tokens[verdict.num_accepted :][:1] or (NO_TOKEN,)
        drafted.append(_other_than(text[-1], refused[0], vocab_size))
        sources += [NO_TOKEN] * len(accepted) + [source]
    count = answers.num_tokens
    return ReplayedText(
        prompt_length=answers.prompt_length,
        text=tuple(text[:count]),
        drafted=tuple(drafted[:count]),
        in_draft=tuple(source == FROM_DRAFT for source in sources[:count]),
        in_exit=tuple(source == FROM_EXIT for source in sources[:count]),
    )


def _within(token: int, place: int, vocab_size: int) -> int:
    """The token, or an id that is there in place of one that is not."""
    return (place + 1) * _STRIDE % vocab_size if token == NO_TOKEN else token % vocab_size


def _other_than(token: int, wanted: int, vocab_size: int) -> int:
    """What is drafted where `token` is right: the wanted one if that is there and wrong, else the next one."""
    drafted = wanted % vocab_size
    return drafted if wanted != NO_TOKEN and drafted != token else (token + 1) % vocab_size
