"""Generates training text: the target's answers to user turns.

User turns are openers that the target continues, or requests about passages of earlier answers. Conversations are
written batch by batch to a token file (`training.data.states`), with a provenance file beside it. The same recipe,
target and machine give the same file, however often the generation was interrupted.
"""

import fcntl
import gzip
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from decoding.errors import TrainingError
from decoding.files import is_gzipped, replace_file
from decoding.progress import ReportCount
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, load_decoder
from runtime.models.model_folder import NamedFolder
from runtime.models.tokenizer import Tokenizer, require_embedded
from training.data.states import Conversation, fingerprint, read_conversations, weights_digest
from training.recipe import PASSAGE, QUESTION, PassageRecipe, SelfTextRecipe, TextRecipe
from training.run import usable_device
from training.text.batched_decoding import decode_batch

PROVENANCE_SUFFIX = ".provenance.json"
_MOST_EMPTY_BATCHES = 10
_NAME = "model"
"""Key of the target's name; a file may be continued under another name if the weights are the same."""
_WEIGHTS = "target_weights"
"""Key of the digest of the target's weights."""


def write_self_text(
    recipe: TextRecipe,
    model: NamedFolder,
    path: Path,
    *,
    sources: Sequence[Path] = (),
    device: str = "cpu",
    progress: ReportCount = lambda *_: None,
) -> None:
    """Call `generate_conversations` with the target in a folder (in bfloat16), and passages from token files.

    Raises `TrainingError` also for a target without a chat template.
    """
    tokenizer = Tokenizer.from_folder(model.folder)
    if not tokenizer.has_chat_template:
        msg = "has no chat template, which text is generated in; train on token files that you write yourself"
        raise TrainingError(f"{model.folder}: {msg}")
    place, vocab_size = usable_device(device), ModelConfig.from_folder(model.folder).vocab_size
    _require_sources(recipe, sources)
    rows = read_conversations(sources, vocab_size=vocab_size) if sources else ()
    target = load_decoder(model.folder, dtype=torch.bfloat16).to(place)
    generate_conversations(recipe, target, tokenizer, path, target_name=model.name, sources=rows, progress=progress)


def generate_conversations(
    recipe: TextRecipe,
    target: Decoder,
    tokenizer: Tokenizer,
    path: Path,
    *,
    target_name: str,
    sources: Sequence[Conversation] = (),
    progress: ReportCount = lambda *_: None,
) -> None:
    """Write `recipe.num_conversations` conversations with distinct prompts to `path`, or continue an interrupted run.

    The file is gzipped if its name ends in ".gz"; `path` + ".provenance.json" records its origin. Passages are taken
    from `sources`.

    Raises:
        TrainingError: the file is of another recipe, cannot be written, or is being written by another run; the target
            only repeats prompts; or `sources` are missing, or given without need.
        ConfigError: an opener, or each drawn turn, has tokens without an embedding in the target.
    """
    origin = {
        _NAME: target_name,
        "dtype": str(target.embedding.weight.dtype),
        "recipe": recipe.model_dump(mode="json"),
        _WEIGHTS: weights_digest(target),
    }
    if sources:
        origin["sources"] = fingerprint(sources)
    longest, num_empty = target.config.max_position - recipe.max_answer_tokens, 0
    turns = _turns_of(recipe, target, tokenizer, sources, longest)
    try:
        with closing(_Output(path, origin, target.config.vocab_size)) as output:
            while len(output.prompts) < recipe.num_conversations:
                # a batch depends only on the recipe and the batch's number
                generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + output.num_batches)
                prompts = [
                    tuple(tokenizer.encode_chat([{"role": "user", "content": turn}]))
                    for turn in turns.draw(recipe.batch_size, generator)
                ]
                short = [one for one in dict.fromkeys(prompts) if len(one) <= longest]
                fitting = [one for one in short if one and max(one) < target.config.vocab_size]
                new = [one for one in fitting if one not in output.prompts]
                num_empty = 0 if new else num_empty + 1
                if num_empty > _MOST_EMPTY_BATCHES:
                    if not fitting:
                        for one in short:
                            require_embedded(one, tokenizer, target.config.vocab_size)
                        raise _too_long(min(map(len, prompts)), recipe, longest)
                    msg = f"{target_name} repeats itself: name more openers or templates, or raise user_temperature"
                    raise TrainingError(f"{path}: {msg}")
                rows = _answered(recipe, target, new, generator) if new else []
                output.append(rows[: recipe.num_conversations - len(output.prompts)])
                progress(len(output.prompts), recipe.num_conversations)
    except OSError as error:
        raise TrainingError(f"{path}: cannot be written ({error})") from error


def _too_long(num_tokens: int, recipe: TextRecipe, longest: int) -> TrainingError:
    left = f"of the target's {longest + recipe.max_answer_tokens:,} positions it leaves {max(longest, 0):,}"
    asked = f"max_answer_tokens {recipe.max_answer_tokens:,}"
    return TrainingError(f"{asked}: {left}, and a prompt takes {num_tokens:,}; lower it, or shorten the prompts")


def _turns_of(
    recipe: TextRecipe, target: Decoder, tokenizer: Tokenizer, sources: Sequence[Conversation], longest: int
) -> "OpenedTurns | PassageTurns":
    _require_sources(recipe, sources)
    if isinstance(recipe, SelfTextRecipe):
        return OpenedTurns(recipe, target, tokenizer, longest)
    return PassageTurns(recipe, tokenizer, sources)


def _require_sources(recipe: TextRecipe, sources: Sequence[object]) -> None:
    if recipe.kind == "selfgen" and sources:
        raise TrainingError("a recipe of kind 'selfgen' takes no passages: leave the token files away")
    if recipe.kind == "passages" and not sources:
        msg = "a recipe of kind 'passages' needs conversations to take them from: name token files (--passages)"
        raise TrainingError(msg)


def _answered(
    recipe: TextRecipe, target: Decoder, prompts: Sequence[tuple[int, ...]], generator: torch.Generator
) -> list[Conversation]:
    greedy = (torch.rand(len(prompts), generator=generator) < recipe.greedy_share).tolist()
    temperatures = [0.0 if is_greedy else recipe.answer_temperature for is_greedy in greedy]
    answers = decode_batch(
        target,
        prompts,
        temperatures,
        top_p=recipe.answer_top_p,
        stop_ids=set(target.config.eos_token_ids),
        max_new_tokens=recipe.max_answer_tokens,
        generator=generator,
    )
    rows = zip(prompts, answers, temperatures, strict=True)
    return [Conversation(prompt, tuple(answer), temperature) for prompt, answer, temperature in rows]


class _Output:
    """The token file, locked until `close`. It grows by whole batches; an incomplete batch is cut off on resumption."""

    def __init__(self, path: Path, origin: dict[str, Any], vocab_size: int) -> None:
        self.path, self._origin = path, origin
        self._provenance = path.with_name(path.name + PROVENANCE_SUFFIX)
        self.num_batches = self._num_bytes = 0
        self.prompts: set[tuple[int, ...]] = set()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (is_begun := self._provenance.is_file()):
            if path.exists():
                raise TrainingError(f"{path}: is there, but not {self._provenance.name}: name another file")
            self._save_state()  # before the first batch, so that an interrupted one can be recognised
        self._file = path.open("ab")
        try:
            self._lock()
            if is_begun:
                self._resume(vocab_size)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close and unlock the file."""
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TrainingError(f"{self.path}: another run is writing it ({error}); name another file") from error

    def append(self, rows: Sequence[Conversation]) -> None:
        lines = [json.dumps(row._asdict(), separators=(",", ":")) + "\n" for row in rows]
        content = "".join(lines).encode()
        if content and is_gzipped(self.path):
            content = gzip.compress(content, mtime=0)
        self._file.write(content)
        self._file.flush()
        self._num_bytes += len(content)
        self.num_batches += 1
        self.prompts |= {row.prompt for row in rows}
        self._save_state()

    def _save_state(self) -> None:
        state = {"num_batches": self.num_batches, "num_bytes": self._num_bytes, "num_conversations": len(self.prompts)}
        replace_file(self._provenance, (json.dumps(self._origin | state, indent=2) + "\n").encode())

    def _resume(self, vocab_size: int) -> None:
        try:
            state = json.loads(self._provenance.read_bytes())
            self.num_batches, self._num_bytes = int(state["num_batches"]), int(state["num_bytes"])
        except (ValueError, KeyError, TypeError) as error:
            raise TrainingError(f"{self._provenance}: damaged ({error!r})") from error
        differing = [key for key, value in self._origin.items() if key != _NAME and state.get(key) != value]
        if differing:
            what = f"a {state.get(_NAME)} of other weights" if differing == [_WEIGHTS] else f"another {differing[0]}"
            msg = f"{self._provenance}: the file was begun with {what}: name another file"
            raise TrainingError(msg)
        if self.path.stat().st_size < self._num_bytes:
            raise TrainingError(f"{self.path}: shorter than {self._provenance.name} records: remove both")
        self._file.truncate(self._num_bytes)
        if self._num_bytes:
            self.prompts = {row.prompt for row in read_conversations([self.path], vocab_size=vocab_size)}


class OpenedTurns:
    """User turns: openers that the target continues, up to prompts of `longest` tokens."""

    def __init__(self, recipe: SelfTextRecipe, target: Decoder, tokenizer: Tokenizer, longest: int) -> None:
        """Prepare the openers; raises `TrainingError` if each of them is too long."""
        self._recipe, self._target, self._tokenizer = recipe, target, tokenizer
        taken = [len(tokenizer.encode_chat([{"role": "user", "content": one}])) for one in recipe.openers]
        if min(taken) >= longest:
            raise _too_long(min(taken) + 1, recipe, longest)
        room = longest - max(count for count in taken if count < longest)  # turns of longer openers are dropped later
        self._most_tokens = min(recipe.max_user_tokens, room)
        turns = [_user_turn(tokenizer, text) for text in ("7", "9")]
        closing = _common_end(*turns)
        self._openings = {opener: _user_turn(tokenizer, opener)[: -len(closing) or None] for opener in recipe.openers}
        for opening in self._openings.values():
            require_embedded(opening, tokenizer, target.config.vocab_size)
        self._end_of_turn = {*target.config.eos_token_ids, *closing[:1]}

    def draw(self, count: int, generator: torch.Generator) -> list[str]:
        """Return `count` random openers, each continued by the target as a user's turn."""
        recipe = self._recipe
        places = torch.randint(len(recipe.openers), (count,), generator=generator).tolist()
        openers = [recipe.openers[place] for place in places]
        openings = [self._openings[opener] for opener in openers]
        continuations = decode_batch(
            self._target,
            openings,
            [recipe.user_temperature] * count,
            top_p=recipe.user_top_p,
            stop_ids=self._end_of_turn,
            max_new_tokens=self._most_tokens,
            generator=generator,
        )
        turns = []
        for opener, opening, sampled in zip(openers, openings, continuations, strict=True):
            continued = sampled[:-1] if sampled[-1] in self._end_of_turn else sampled
            before = self._tokenizer.decode(opening)
            turns.append((opener + self._tokenizer.decode([*opening, *continued])[len(before) :]).strip())
        return turns


class PassageTurns:
    """User turns: requests about passages, which are answers of `conversations`."""

    def __init__(self, recipe: PassageRecipe, tokenizer: Tokenizer, conversations: Sequence[Conversation]) -> None:
        self._recipe, self._tokenizer, self._conversations = recipe, tokenizer, conversations
        prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in ("7", "9")]
        self._around = (len(_common_end(*(prompt[::-1] for prompt in prompts))), len(_common_end(*prompts)))

    def draw(self, count: int, generator: torch.Generator) -> list[str]:
        """Return `count` random templates, filled with random passages."""
        return [self._turn(generator) for _ in range(count)]

    def _turn(self, generator: torch.Generator) -> str:
        template = self._recipe.templates[_below(len(self._recipe.templates), generator)]
        least, most = self._recipe.passage_tokens
        wanted = least + _below(most - least + 1, generator)
        chosen: list[Conversation] = []
        while sum(len(row.answer) for row in chosen) < wanted:
            chosen.append(self._conversations[_below(len(self._conversations), generator)])
        asked = chosen[_below(len(chosen), generator)].prompt
        question = self._text(asked[self._around[0] : len(asked) - self._around[1]])
        passages = "\n\n".join(self._text(row.answer) for row in chosen)
        return template.replace(QUESTION, question).replace(PASSAGE, passages)

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids).strip()


def _user_turn(tokenizer: Tokenizer, content: str) -> list[int]:
    return tokenizer.encode_chat([{"role": "user", "content": content}], add_generation_prompt=False)


def _below(limit: int, generator: torch.Generator) -> int:
    return int(torch.randint(limit, (), generator=generator))


def _common_end(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the longest common suffix."""
    count = 0
    while count < min(len(first), len(second)) and first[-1 - count] == second[-1 - count]:
        count += 1
    return list(first[len(first) - count :])
