"""Token files: the target's own answers, one JSON object a line (`prompt`, `answer`, `temperature`)."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from decoding.errors import TrainingError, shown
from decoding.files import parse_json

MAX_LINE_CHARACTERS: Final = 16_000_000
"""Limit of one conversation: two million tokens."""


class Conversation(NamedTuple):
    """One user turn in the chat template and the target's answer to it, as target token ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float = 0.0
    """Temperature of the answer; 0 is greedy."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and answer in one row."""
        return self.prompt + self.answer


def read_conversations(paths: Sequence[Path], *, vocab_size: int) -> list[Conversation]:
    """Return every conversation of the token files; raise `TrainingError`, which names file and line, if damaged."""
    conversations = [row for path in paths for row in _read_file(path, vocab_size)]
    if not conversations:
        raise TrainingError(f"{', '.join(map(str, paths)) or '(no file)'}: no conversation found")
    return conversations


def training_part(conversations: list[Conversation], num_held_out: int) -> list[Conversation]:
    """Return all but the last `num_held_out` conversations; raise `TrainingError` if nothing is left to train on."""
    if not 0 < num_held_out < len(conversations):
        msg = (
            f"num_held_out {num_held_out} leaves nothing to train on: there are {len(conversations)} conversations, "
            "and at least one must be held out and one trained on"
        )
        raise TrainingError(msg)
    return conversations[:-num_held_out]


def most_frequent_ids(conversations: Sequence[Conversation], size: int, *, always: Sequence[int] = ()) -> list[int]:
    """Return the `size` ids that answers use most, ascending, `always` among them; ties go to the lowest ids."""
    counts = Counter(token for row in conversations for token in row.answer)
    by_use = [token for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    kept = dict.fromkeys([*always, *by_use, *range(size)])
    return sorted(list(kept)[:size])


def fingerprint(conversations: Sequence[Conversation]) -> str:
    """SHA-256 of prompts and answers: two lists with the same one train the same."""
    digest = hashlib.sha256()
    for row in conversations:
        digest.update(repr((row.prompt, row.answer)).encode())
    return digest.hexdigest()


def _read_file(path: Path, vocab_size: int) -> Iterator[Conversation]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(_lines(file), 1):
                yield _parse(line, vocab_size, f"{path}:{number}")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise TrainingError(f"{path}: cannot be read beyond line {number} ({error})") from error


def _lines(file: TextIO) -> Iterator[str]:
    """The lines of a file; a `ValueError` before one is read that is too long, however little of the disk it takes."""
    while line := file.readline(MAX_LINE_CHARACTERS + 1):
        if len(line) > MAX_LINE_CHARACTERS:
            raise ValueError(f"the next has more than {MAX_LINE_CHARACTERS:,} characters")
        yield line


def _parse(line: str, vocab_size: int, where: str) -> Conversation:
    try:
        row = parse_json(line)
        prompt, answer, temperature = row["prompt"], row["answer"], float(row.get("temperature", 0.0))
        conversation = Conversation(tuple(prompt), tuple(answer), temperature)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        msg = f"{where}: expected an object with token lists 'prompt' and 'answer' ({error!r})"
        raise TrainingError(msg) from error
    if not temperature >= 0:
        raise TrainingError(f"{where}: 'temperature' should be a number of at least 0, found {shown(temperature)}")
    if not conversation.prompt or not conversation.answer:
        raise TrainingError(f"{where}: 'prompt' and 'answer' must not be empty")
    wrong = [token for token in conversation.ids if type(token) is not int or not 0 <= token < vocab_size]
    if wrong:
        raise TrainingError(f"{where}: {shown(wrong[0])} is not a token id of the target (0..{vocab_size - 1})")
    return conversation
