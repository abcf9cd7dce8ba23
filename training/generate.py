"""The target's own data: user turns it makes up after short openers, and its answers to them.

Written batch by batch as token files (see `training.data`), with a provenance file beside it. The same recipe,
target and machine give the same file, however often the making was cut off.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from decoding.atomic_file import replace_file
from decoding.errors import TrainingError
from runtime.decoder import Decoder
from training.batched_decoding import Sampling, decode_batch
from training.data import Conversation, read_conversations
from training.recipe import SelfTextRecipe

Progress = Callable[[int, int], None]
PROVENANCE_SUFFIX = ".provenance.json"
_MOST_EMPTY_BATCHES = 10


class ChatTokenizer(Protocol):
    """What is needed of `runtime.models.tokenizer.Tokenizer`."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation in the chat template."""
        ...

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        ...


def generate_conversations(
    recipe: SelfTextRecipe,
    target: Decoder,
    tokenizer: ChatTokenizer,
    path: Path,
    *,
    target_name: str,
    progress: Progress = lambda *_: None,
) -> None:
    """Write `recipe.num_conversations` conversations with distinct prompts to `path`, or go on doing so.

    Args:
        recipe: how many, how long, how sampled.
        target: who speaks, in the dtype and on the device of its weights.
        tokenizer: the target's.
        path: a token file, gzipped if it ends in ".gz". `path` + ".provenance.json" says where it comes from.
        target_name: what a user calls the target.
        progress: called after each batch with conversations done and wanted.

    Raises:
        TrainingError: the file there is another recipe's, it cannot be written, or the target has nothing new
            to say.
    """
    origin = {
        "model": target_name,
        "dtype": str(target.embedding.weight.dtype),
        "recipe": recipe.model_dump(mode="json"),
    }
    speaker = _Speaker(recipe, target, tokenizer)
    try:
        output = _Output(path, origin, target.config.vocab_size)
        num_empty = 0
        while len(output.prompts) < recipe.num_conversations:
            rows = speaker.speak(output.num_batches, output.prompts)
            num_empty = 0 if rows else num_empty + 1
            if num_empty > _MOST_EMPTY_BATCHES:
                msg = f"{path}: {target_name} repeats itself: name more openers, or raise user_temperature"
                raise TrainingError(msg)
            output.append(rows[: recipe.num_conversations - len(output.prompts)])
            progress(len(output.prompts), recipe.num_conversations)
    except OSError as error:
        msg = f"{path}: cannot be written ({error})"
        raise TrainingError(msg) from error


class _Speaker:
    """Makes one batch of conversations after the other; a batch depends on the recipe and its number alone."""

    def __init__(self, recipe: SelfTextRecipe, target: Decoder, tokenizer: ChatTokenizer) -> None:
        self._recipe, self._target, self._tokenizer = recipe, target, tokenizer
        self._longest_prompt = len(target.rotary.cos_PH) - recipe.max_answer_tokens
        closing = _common_end(self._user_turn("7"), self._user_turn("9"))
        self._openings = {opener: self._without(self._user_turn(opener), closing) for opener in recipe.openers}
        self._eos = set(target.config.eos_token_ids)
        self._end_of_turn = self._eos | set(closing[:1])

    def speak(self, number: int, known: set[tuple[int, ...]]) -> list[Conversation]:
        """Batch `number`, without prompts that are known or too long."""
        recipe = self._recipe
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + number)
        places = torch.randint(len(recipe.openers), (recipe.batch_size,), generator=generator).tolist()
        turns = self._user_turns([recipe.openers[place] for place in places], generator)
        prompts = [tuple(self._tokenizer.encode_chat([{"role": "user", "content": turn}])) for turn in turns]
        new = [
            prompt for prompt in dict.fromkeys(prompts) if prompt not in known and len(prompt) <= self._longest_prompt
        ]
        if not new:
            return []
        greedy = (torch.rand(len(new), generator=generator) < recipe.greedy_share).tolist()
        temperatures = [0.0 if is_greedy else recipe.answer_temperature for is_greedy in greedy]
        answers = decode_batch(
            self._target,
            new,
            Sampling(temperatures=temperatures, top_p=recipe.answer_top_p),
            stop_ids=self._eos,
            max_new_tokens=recipe.max_answer_tokens,
            generator=generator,
        )
        rows = zip(new, answers, temperatures, strict=True)
        return [Conversation(prompt, tuple(answer), temperature) for prompt, answer, temperature in rows]

    def _user_turns(self, openers: Sequence[str], generator: torch.Generator) -> list[str]:
        """What the target thinks a user would say who begins so."""
        recipe = self._recipe
        openings = [self._openings[opener] for opener in openers]
        continuations = decode_batch(
            self._target,
            openings,
            Sampling(temperatures=[recipe.user_temperature] * len(openers), top_p=recipe.user_top_p),
            stop_ids=self._end_of_turn,
            max_new_tokens=recipe.max_user_tokens,
            generator=generator,
        )
        turns = []
        for opener, opening, sampled in zip(openers, openings, continuations, strict=True):
            said = sampled[:-1] if sampled[-1] in self._end_of_turn else sampled
            before = self._tokenizer.decode(opening)
            turns.append((opener + self._tokenizer.decode([*opening, *said])[len(before) :]).strip())
        return turns

    def _user_turn(self, content: str) -> list[int]:
        return self._tokenizer.encode_chat([{"role": "user", "content": content}], add_generation_prompt=False)

    @staticmethod
    def _without(ids: list[int], closing: list[int]) -> list[int]:
        return ids[: len(ids) - len(closing)]


class _Output:
    """The token file: grows by whole batches; whatever a cut-off batch left behind is removed."""

    def __init__(self, path: Path, origin: dict[str, Any], vocab_size: int) -> None:
        self.path, self._origin = path, origin
        self._provenance = path.with_name(path.name + PROVENANCE_SUFFIX)
        self.num_batches = self._num_bytes = 0
        self.prompts: set[tuple[int, ...]] = set()
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._provenance.is_file():
            self._resume(vocab_size)
        elif path.exists():
            msg = f"{path}: is there, but not {self._provenance.name}: name another file"
            raise TrainingError(msg)

    def append(self, rows: Sequence[Conversation]) -> None:
        """Write a batch, then the fact that it is complete."""
        lines = [json.dumps(row._asdict(), separators=(",", ":")) + "\n" for row in rows]
        content = "".join(lines).encode()
        if content and self.path.suffix == ".gz":
            content = gzip.compress(content, mtime=0)
        with self.path.open("ab") as file:
            file.write(content)
        self._num_bytes += len(content)
        self.num_batches += 1
        self.prompts |= {row.prompt for row in rows}
        state = {"num_batches": self.num_batches, "num_bytes": self._num_bytes, "num_conversations": len(self.prompts)}
        replace_file(self._provenance, (json.dumps(self._origin | state, indent=2) + "\n").encode())

    def _resume(self, vocab_size: int) -> None:
        try:
            state = json.loads(self._provenance.read_bytes())
            self.num_batches, self._num_bytes = int(state["num_batches"]), int(state["num_bytes"])
        except (ValueError, KeyError, TypeError) as error:
            msg = f"{self._provenance}: damaged ({error!r})"
            raise TrainingError(msg) from error
        differing = [key for key, value in self._origin.items() if state.get(key) != value]
        if differing:
            msg = f"{self._provenance}: the file was begun with another {differing[0]}: name another file"
            raise TrainingError(msg)
        if not self.path.is_file() or self.path.stat().st_size < self._num_bytes:
            msg = f"{self.path}: shorter than {self._provenance.name} says: remove both"
            raise TrainingError(msg)
        with self.path.open("r+b") as file:
            file.truncate(self._num_bytes)
        if self._num_bytes:
            self.prompts = {row.prompt for row in read_conversations([self.path], vocab_size=vocab_size)}


def _common_end(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """What two lists of ids have in common at their ends."""
    count = 0
    while count < min(len(first), len(second)) and first[-1 - count] == second[-1 - count]:
        count += 1
    return list(first[len(first) - count :])
