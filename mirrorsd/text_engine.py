"""Text in, text out: the engine of the real world with the target's tokenizer and this machine's lanes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Self

from calibrate.prompts import Prompt
from decoding.schedule import Schedule
from decoding.trace import Trace
from mirrorsd.lane_choice import all_lane_specs
from mirrorsd.model_pair import Dtype, ModelPair, find_scheduled_pair, folder_of
from mirrorsd.prompt_tokens import encode_with
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.lanes.sequence_lanes import Listener
from runtime.models.tokenizer import StreamDecoder, Tokenizer

OnText = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The answer to a prompt, and how it was decoded; its `repr` is the text alone. `tokens` include an EOS."""

    text: str
    tokens: tuple[int, ...] = field(repr=False)
    trace: Trace = field(repr=False)

    def _repr_html_(self) -> str:
        """Return the text, with what it took below, for notebooks."""
        rounds, seconds = len(self.trace.rounds), self.trace.decode_s
        took = f"{len(self.tokens)} tokens in {rounds} rounds, {seconds:.2f} s"
        return f"<p style='white-space: pre-wrap'>{escape(self.text)}</p><p><small>{took}</small></p>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoding:
    """How many tokens, and how they are chosen; `temperature` 0 is greedy."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0


class TextEngine:
    """Answers prompts by any schedule; a context manager, whose lane processes stay between prompts."""

    def __init__(self, pair: ModelPair, lanes: Sequence[LaneSpec]) -> None:
        """Prepare; models are loaded by the first prompt.

        Raises:
            ConfigError: two lanes share a name, or a lane wants cores that are not there.
            ModelError: the target's folder lacks something.
        """
        self._tokenizer = Tokenizer.from_folder(pair.target_folder)
        self._engine = new_engine(pair, lanes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    def answer(
        self, prompt: Prompt, schedule: Schedule, decoding: Decoding, *, on_text: OnText = lambda _: None
    ) -> Answer:
        """Decode the first turn of a prompt; `on_text` is called with every piece of text as it is committed.

        The seed is mixed with the prompt's id, so that prompts do not share their random draws.

        Raises:
            ConfigError: the schedule or a setting does not fit the models or the lanes.
            LaneDiedError: the target's lane was lost; its `tokens` are those committed until then.
        """
        (encoded,) = encode_with(self._tokenizer, [prompt])
        stream = StreamDecoder(self._tokenizer)
        made = self._engine.generate(
            schedule,
            encoded.ids,
            max_new_tokens=decoding.max_new_tokens,
            temperature=decoding.temperature,
            seed=_own_seed(decoding.seed, prompt.prompt_id),
            listener=Listener(on_tokens=lambda tokens: on_text(stream.push(tokens))),
        )
        on_text(stream.finish())
        return Answer(text=self._tokenizer.decode(made.tokens), tokens=made.tokens, trace=made.trace)


def generate(
    prompt: str,
    schedule: Schedule,
    *,
    target: str | Path = "smollm2-135m-instruct",
    dtype: Dtype = "bfloat16",
    decoding: Decoding | None = None,
    on_text: OnText = lambda _: None,
) -> Answer:
    """Answer one prompt on this machine's own lanes, with the schedule's drafter; for many keep a `TextEngine`.

    Raises:
        MirrorsdError: a model is not to be had, or the schedule does not fit it or this machine.
    """
    pair, wanted = find_scheduled_pair(schedule, target, dtype=dtype)
    with TextEngine(pair, all_lane_specs()) as engine:
        question = Prompt(prompt_id="prompt", category="", turns=(prompt,))
        return engine.answer(question, wanted, decoding or Decoding(), on_text=on_text)


def new_engine(pair: ModelPair, lanes: Sequence[LaneSpec]) -> Engine:
    """An engine that nothing is loaded into yet; errors as in `TextEngine`."""
    return Engine(
        pair.target_folder,
        lanes=lanes,
        drafter_folder=folder_of(pair.drafter),
        exits_folder=folder_of(pair.exits),
        dtype=pair.dtype,
    )


def _own_seed(seed: int, prompt_id: str) -> int:
    digest = hashlib.sha256(f"{seed} {prompt_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
