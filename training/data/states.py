"""Token files of the target's answers, and the target's hidden states on them, computed once and kept on disk.

There is one bfloat16 file per layer, with rows in the order of the conversations' tokens; states after the last layer
are stored after the final norm. A folder belongs to one target and one list of conversations. Layers can be added
later, and interrupted work continues.
"""

import gzip
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

import numpy as np
import torch
from pydantic import NonNegativeInt, TypeAdapter
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from decoding.errors import TrainingError, shown
from decoding.files import is_gzipped, most_unpacked, parse_json, replace_file
from decoding.progress import ReportCount
from runtime.models.decoder import Decoder, causal_mask
from runtime.storage.weight_folder import TargetShape

MAX_LINE_CHARACTERS: Final = 16_000_000
"""Longest line of a token file: about two million tokens."""
MAX_CHARACTERS: Final = 1 << 40
"""Longest token file, unpacked."""


class Conversation(NamedTuple):
    """One user turn in the chat template, and the target's answer to it, as token ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float = 0.0
    """Temperature of the answer; 0 is greedy."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and answer concatenated."""
        return self.prompt + self.answer


def read_conversations(
    paths: Sequence[Path], *, vocab_size: int, max_tokens: int = MAX_LINE_CHARACTERS
) -> list[Conversation]:
    """Return the conversations of some token files, each of at most `max_tokens` (the target's positions).

    A line is a JSON object with token lists `prompt` and `answer`, and a `temperature` unless that is 0; or empty.

    Raises `TrainingError` (with file and line) for a damaged or too long line.
    """
    conversations = [row for path in paths for row in _read_file(path, vocab_size, max_tokens)]
    if not conversations:
        raise TrainingError(f"{', '.join(map(str, paths)) or '(no file)'}: no conversation found")
    return conversations


def with_held_out(conversations: list[Conversation], num_held_out: int) -> list[Conversation]:
    """Return the training conversations, then the last `num_held_out` ones.

    Training conversations with the prompt of a held-out one are dropped. Raises `TrainingError` if none is left.
    """
    judging = conversations[-num_held_out:]
    held_out = {row.prompt for row in judging}
    training = [row for row in conversations[:-num_held_out] if row.prompt not in held_out]
    if not num_held_out or not training:
        msg = (
            f"num_held_out {num_held_out} leaves nothing to train on: there are {len(conversations)} conversations, "
            "and at least one must be held out and one with another prompt trained on"
        )
        raise TrainingError(msg)
    return training + judging


def most_frequent_ids(conversations: Sequence[Conversation], size: int, *, always: Sequence[int] = ()) -> list[int]:
    """Return the `size` token ids that answers use most, including `always`, ascending; ties go to lower ids."""
    counts = Counter(token for row in conversations for token in row.answer)
    by_use = [token for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    kept = dict.fromkeys([*always, *by_use, *range(size)])
    return sorted(list(kept)[:size])


def fingerprint(conversations: Sequence[Conversation]) -> str:
    """Return the SHA-256 of all prompts and answers, which identifies training data."""
    digest = hashlib.sha256()
    for row in conversations:
        digest.update(repr((row.prompt, row.answer)).encode())
    return digest.hexdigest()


def _read_file(path: Path, vocab_size: int, max_tokens: int) -> Iterator[Conversation]:
    opener: Any = gzip.open if is_gzipped(path) else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(_lines(file, most_unpacked(path.stat().st_size, MAX_CHARACTERS)), 1):
                if not line.strip():
                    continue
                row = _parse(line, vocab_size, f"{path}:{number}")
                if (length := len(row.ids)) > max_tokens:
                    msg = f"{path}:{number}: {length:,} tokens are more than the target's {max_tokens:,} positions"
                    raise TrainingError(msg)
                yield row
    except (OSError, EOFError, ValueError, zlib.error) as error:
        where = f" beyond line {number}" if number else ""
        raise TrainingError(f"{path}: cannot be read{where} ({error})") from error


def _lines(file: TextIO, most: int) -> Iterator[str]:
    """Yield the lines of a file; raises `ValueError` for a too long line, or more than `most` characters in total."""
    while line := file.readline(MAX_LINE_CHARACTERS + 1):
        if len(line) > MAX_LINE_CHARACTERS:
            raise ValueError(f"the next has more than {MAX_LINE_CHARACTERS:,} characters")
        most -= len(line)
        if most < 0:
            raise ValueError("it unpacks to far more than token files do")
        yield line


def _parse(line: str, vocab_size: int, where: str) -> Conversation:
    try:
        row = parse_json(line)
        prompt, answer, temperature = row["prompt"], row["answer"], float(row.get("temperature", 0.0))
        if not (isinstance(prompt, list) and isinstance(answer, list)):
            raise TypeError("found no list")
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


_ROWS_PER_BATCH = 1024
_CONVERSATIONS_PER_SAVE = 128
_FINGERPRINT = "fingerprint"
_DONE = "done.json"
_COUNTS: Final = TypeAdapter(dict[int, NonNegativeInt])


class TargetStates:
    """The hidden states of all tokens of `conversations` after each of `layers`, and after the last layer.

    Raises `TrainingError` for a folder with other states, or one that cannot be written.
    """

    def __init__(
        self, folder: Path, target: Decoder, conversations: Sequence[Conversation], layers: Sequence[int]
    ) -> None:
        self.folder, self.target, self.conversations = folder, target, conversations
        self.layers = sorted({*layers, target.config.num_layers})
        self.starts = [0, *accumulate(len(row.ids) for row in conversations)]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._claim()
            self._forget_cut()
            self._maps = {layer: self._open(layer) for layer in self.layers}
        except OSError as error:
            msg = f"{folder}: cannot be written ({error}); {len(self.layers)} layers need {self._num_bytes} bytes each"
            raise TrainingError(msg) from error
        # NumPy has no bfloat16: its maps are int16
        self._files = {layer: torch.from_numpy(bits).view(torch.bfloat16) for layer, bits in self._maps.items()}

    @property
    def device(self) -> torch.device:
        """The device of the target and of batches."""
        return self.target.embedding.weight.device

    def rows(self, layer: int, index: int) -> Tensor:
        """Return a view of the file with the states after `layer` of conversation `index`, [tokens, D] bfloat16."""
        return self._files[layer][self.starts[index] : self.starts[index + 1]]

    def padded(self, layer: int, indices: Sequence[int]) -> Tensor:
        """Return the states after `layer` of several conversations, zero-padded on the right, [B, T, D] bfloat16."""
        return pad_sequence([self.rows(layer, index) for index in indices], batch_first=True).to(self.device)

    def fill(self, progress: ReportCount = lambda *_: None) -> None:
        """Compute the missing states; `progress(done, total)` counts conversations."""
        total, counts = len(self.conversations), self._counts()
        done = min(counts.get(layer, 0) for layer in self.layers)
        while done < total:
            stop = min(done + _CONVERSATIONS_PER_SAVE, total)
            by_length = sorted(range(done, stop), key=lambda index: len(self.conversations[index].ids))
            for batch in _batches(by_length, self.conversations):
                self._compute(batch)
            for states in self._maps.values():
                states.flush()  # states must be on disk before the count that promises them
            done = stop
            counts |= {layer: max(done, counts.get(layer, 0)) for layer in self.layers}
            self._write(counts)
            progress(done, total)

    @torch.inference_mode()
    def _compute(self, batch: list[int]) -> None:
        rows = [torch.tensor(self.conversations[index].ids, device=self.device) for index in batch]
        x_BTD = self.target.embedding(pad_sequence(rows, batch_first=True))
        width = x_BTD.shape[1]
        mask = causal_mask(width, x_BTD.dtype).to(self.device)
        positions = torch.arange(width, device=self.device)
        start = 0
        for layer in self.layers:
            x_BTD = self.target.run_layers(x_BTD, start, layer, positions=positions, mask=mask)
            start = layer
            last = layer == self.target.config.num_layers
            kept = self.target.normalise(x_BTD) if last else x_BTD
            for row, index in enumerate(batch):
                self.rows(layer, index).copy_(kept[row, : len(rows[row])])

    @property
    def _num_bytes(self) -> int:
        return self.starts[-1] * self.target.config.hidden_size * torch.bfloat16.itemsize

    def _counts(self) -> dict[int, int]:
        """Return how many conversations have their states on disk, by layer."""
        path = self.folder / _DONE
        try:
            return _COUNTS.validate_json(path.read_bytes()) if path.is_file() else {}
        except (OSError, ValueError) as error:
            msg = f"{path}: damaged ({error}); delete the folder {path.parent}, and its states are computed again"
            raise TrainingError(msg) from error

    def _write(self, counts: Mapping[int, int]) -> None:
        replace_file(self.folder / _DONE, json.dumps(counts).encode())

    def _forget_cut(self) -> None:
        """Drop the counts of files that are missing or cut, since `_open` fills these up with zeros."""
        counts = self._counts()
        paths = {layer: self._path(layer) for layer in counts}
        whole = {layer for layer, path in paths.items() if path.is_file() and path.stat().st_size == self._num_bytes}
        if whole != counts.keys():
            self._write({layer: count for layer, count in counts.items() if layer in whole})

    def _path(self, layer: int) -> Path:
        return self.folder / f"layer-{layer}.bin"

    def _open(self, layer: int) -> np.memmap[Any, np.dtype[np.int16]]:
        path, width = self._path(layer), self.target.config.hidden_size
        _reserve(path, self._num_bytes)
        return np.memmap(path, np.int16, "r+", shape=(self.starts[-1], width))

    def _claim(self) -> None:
        config = self.target.config
        digest = hashlib.sha256(f"{TargetShape.of(config)!r} {config.num_layers}".encode())
        digest.update(self.target.final_norm.float().cpu().numpy().tobytes())
        digest.update(fingerprint(self.conversations).encode())
        own = f"{digest.hexdigest()}\n{weights_digest(self.target)}".encode()
        path = self.folder / _FINGERPRINT
        if not path.is_file():
            replace_file(path, own)
        elif path.read_bytes() != own:
            hint = "where prompts come twice, num_held_out decides what is left out"
            msg = f"{self.folder}: holds the states of another target or other data ({hint}); name an empty folder"
            raise TrainingError(msg)


def weights_digest(target: Decoder) -> str:
    """Return the SHA-256 of the RoPE scaling and of all weights, since a fine-tuned model shares some of them."""
    digest = hashlib.sha256(repr(target.config.rope_scaling).encode())
    for weight in target.parameters():
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _reserve(path: Path, num_bytes: int) -> None:
    """Allocate the whole file now: with a full disk, a later write to the memory map would kill the process."""
    with path.open("ab") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        else:
            file.truncate(num_bytes)


def _batches(indices: Sequence[int], conversations: Sequence[Conversation]) -> list[list[int]]:
    """Group `indices`, sorted by length, into batches of one, or of at most `_ROWS_PER_BATCH` padded tokens."""
    batches: list[list[int]] = [[]]
    for index in indices:
        if (len(batches[-1]) + 1) * len(conversations[index].ids) > _ROWS_PER_BATCH and batches[-1]:
            batches.append([])
        batches[-1].append(index)
    return batches
