"""Engines for users: `TextEngine` answers texts with real models; `ReplayEngine` replays a given acceptance.

A replayed acceptance is a record or assumed rates, computed by the same code as in simulations (`sim.acceptance`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Final, Self

from calibrate.prompts import EncodedPrompt, Prompt, own_seeds
from decoding.errors import ConfigError
from decoding.schedule import Schedule
from decoding.trace import Trace
from decoding.validation import require_whole
from mirrorsd.lane_choice import all_lane_specs
from mirrorsd.model_pair import ModelPair, find_scheduled_pair, folder_of
from mirrorsd.prompt_tokens import encode_with
from runtime.backends.lane_device import Dtype
from runtime.drafters.registry import CAUSAL_LM_KIND, kind_of
from runtime.engine import Engine, Generation
from runtime.lanes.lane import LaneSpec
from runtime.lanes.sequence_lanes import NOBODY, Listener
from runtime.models.config import ModelConfig
from runtime.models.tokenizer import StreamDecoder, Tokenizer
from runtime.verification.replayed_text import ReplayedText
from runtime.verification.rules import require_temperature
from sim.acceptance.branch_hits import FROM_DRAFT, FROM_EXIT
from sim.acceptance.joined_record import NO_TOKEN
from sim.acceptance.replay import Acceptance, Outcomes, record_of, replay_of
from sim.acceptance.walk import Walk

OnText = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The answer to a prompt, and how it was decoded; `tokens` include a final EOS. Its `repr` is only the text."""

    text: str
    tokens: tuple[int, ...] = field(repr=False)
    trace: Trace = field(repr=False)

    def _repr_html_(self) -> str:
        """Return the text, with number of tokens, rounds and seconds below it, for notebooks."""
        rounds, seconds = len(self.trace.rounds), self.trace.decode_s
        took = f"{len(self.tokens)} tokens in {rounds} rounds, {seconds:.2f} s"
        return f"<p style='white-space: pre-wrap'>{escape(self.text)}</p><p><small>{took}</small></p>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoding:
    """How many tokens to decode, and how they are chosen; `temperature` 0 is greedy.

    Raises `ConfigError` if `max_new_tokens` is no whole number from 1 on, `seed` none from 0 on, or `temperature` is
    out of range.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_whole("max_new_tokens", self.max_new_tokens, 1)
        require_whole("seed", self.seed, 0)
        require_temperature(self.temperature)


class TextEngine:
    """Answers prompts by any schedule; its lane processes stay between prompts until `close` or the end of a `with`."""

    def __init__(self, pair: ModelPair, lanes: Sequence[LaneSpec] | None = None) -> None:
        """Prepare an engine; the first prompt loads the models. Raises `ConfigError` if a lane is not available.

        Without `lanes`, all lanes of this machine may be used; only those that a schedule names are started.
        """
        self._tokenizer = Tokenizer.from_folder(pair.target_folder)
        self._engine = new_engine(pair, all_lane_specs() if lanes is None else lanes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all lane processes; a further prompt would start them again."""
        self._engine.close()

    def check(self, prompts: Sequence[Prompt], schedule: Schedule, decoding: Decoding) -> None:
        """Raise what `answer` would raise before it loads anything.

        Raises:
            ConfigError: schedule or settings do not fit a prompt; the message names the prompt.
            MemoryFitError: the longest prompt needs more memory than there is.
        """
        asked = self._encoded(prompts)
        for encoded in asked:
            try:
                self._engine.check(schedule, encoded.ids, decoding.max_new_tokens, decoding.temperature)
            except ConfigError as error:
                raise ConfigError(f"prompt {encoded.name}: {error}" if len(prompts) > 1 else str(error)) from error
        longest = max((len(encoded.ids) for encoded in asked), default=0)
        self._engine.take_room(schedule, longest + decoding.max_new_tokens)

    def seeds(self, prompts: Sequence[Prompt], seed: int, kept: Mapping[int, int]) -> list[int]:
        """Return the seed of each prompt, as `own_seeds` does."""
        return own_seeds([one.ids for one in self._encoded(prompts)], seed, kept)

    def answer(
        self, prompt: Prompt | str, schedule: Schedule, decoding: Decoding, *, on_text: OnText = lambda _: None
    ) -> Answer:
        """Decode a text, or a prompt's first turn; `on_text` is called with every piece of text as it is committed.

        Raises:
            ConfigError: the schedule or a setting does not fit the models or the lanes.
            LaneDiedError: the target's lane died; the error's `tokens` are those committed until then.
        """
        if isinstance(prompt, str):
            prompt = Prompt(prompt_id="prompt", category="", turns=(prompt,))
        (encoded,) = self._encoded([prompt])
        stream = StreamDecoder(self._tokenizer)
        made = self._engine.generate(
            schedule,
            encoded.ids,
            max_new_tokens=decoding.max_new_tokens,
            temperature=decoding.temperature,
            seed=decoding.seed,
            listener=Listener(on_tokens=lambda tokens: on_text(stream.push(tokens))),
        )
        on_text(stream.finish())
        return Answer(text=self._tokenizer.decode(made.tokens), tokens=made.tokens, trace=made.trace)

    def _encoded(self, prompts: Sequence[Prompt]) -> tuple[EncodedPrompt, ...]:
        return encode_with(self._tokenizer, prompts, self._engine.config.vocab_size)


def generate(
    prompt: str,
    schedule: Schedule,
    *,
    target: str | Path = "smollm2-135m-instruct",
    dtype: Dtype = "bfloat16",
    decoding: Decoding | None = None,
    on_text: OnText = lambda _: None,
) -> Answer:
    """Answer one prompt on this machine's lanes, with the schedule's drafter; for many prompts use a `TextEngine`.

    Raises:
        MirrorsdError: a model cannot be found, or the schedule does not fit the models or this machine.
    """
    settings = decoding or Decoding()
    require_temperature(settings.temperature, schedule.verification)  # before a model is fetched
    pair, wanted = find_scheduled_pair(schedule, target, dtype=dtype)
    with TextEngine(pair) as engine:
        return engine.answer(prompt, wanted, settings, on_text=on_text)


def new_engine(pair: ModelPair, lanes: Sequence[LaneSpec], **deadlines: float) -> Engine:
    """Return an engine that has loaded nothing yet; raises what `TextEngine` raises; `deadlines` are `Engine`'s."""
    return Engine(
        pair.target_folder,
        lanes=lanes,
        drafter_folder=folder_of(pair.drafter),
        exits_folder=folder_of(pair.exits),
        dtype=pair.dtype,
        **deadlines,
    )


_STRIDE: Final = 7919
"""Prime, so that the ids of an arbitrary text visit the whole vocabulary."""
DRAWN_PROMPT_LENGTH: Final = 128
"""Length of drawn prompts, in tokens."""


class ReplayEngine(Engine):
    """An engine with a given acceptance: it replays a record's prompts by any schedule, and decodes other prompts.

    A model with random weights can thus run schedules from end to end, and its lanes can be calibrated. Answers are
    labelled and have no text. It is a context manager.

    Attributes:
        questions: the prompts of the record, without their texts.
        prompts: the same prompts with made-up token ids, all different.
    """

    def __init__(self, pair: ModelPair, lanes: Sequence[LaneSpec], acceptance: Acceptance) -> None:
        """Prepare an engine; models are loaded when needed. The acceptance may be another pair's; errors: `Engine`."""
        super().__init__(
            pair.target_folder,
            lanes=lanes,
            drafter_folder=folder_of(pair.drafter),
            exits_folder=folder_of(pair.exits),
            dtype=pair.dtype,
        )
        self._acceptance, self._vocab_size = acceptance, vocab_size_of(pair)
        self._texts: dict[Schedule, list[ReplayedText]] = {}
        recorded = record_of(acceptance).prompts
        self.questions = tuple(Prompt(prompt_id=one.name, category=one.category, turns=("",)) for one in recorded)
        self.prompts = tuple(
            EncodedPrompt(one.name, one.category, arbitrary_prompt(one.prompt_length, self._vocab_size, number=number))
            for number, one in enumerate(recorded, 1)
        )
        self._places = {prompt.ids: place for place, prompt in enumerate(self.prompts)}

    def check_questions(self, schedule: Schedule, decoding: Decoding) -> None:
        """Raise what `answer` would raise before it loads anything: what `replay` and `take_room` raise."""
        texts = [text.cut(decoding.max_new_tokens) for text in self._texts_of(schedule)]
        for prompt, text in zip(self.prompts, texts, strict=True):
            self.check_replay(schedule, prompt.ids, text)
        self.take_room(schedule, max(text.prompt_length + len(text.text) for text in texts))

    def generate(self, schedule: Schedule, prompt: Sequence[int], *, max_new_tokens: int, **options: Any) -> Generation:
        """Replay at most `max_new_tokens` of one of `prompts`; decode any other prompt as `Engine.generate` does."""
        place = self._places.get(tuple(prompt))
        if place is None:
            return super().generate(schedule, prompt, max_new_tokens=max_new_tokens, **options)
        return self._replayed(place, schedule, max_new_tokens, options.get("listener", NOBODY))

    def answer(self, prompt: Prompt, schedule: Schedule, decoding: Decoding, **_: Any) -> Answer:
        """Replay one of `questions`."""
        made = self._replayed(self.questions.index(prompt), schedule, decoding.max_new_tokens, NOBODY)
        return Answer(text="", tokens=made.tokens, trace=made.trace)

    def _replayed(self, place: int, schedule: Schedule, max_new_tokens: int, listener: Listener) -> Generation:
        text = self._texts_of(schedule)[place].cut(max_new_tokens)
        return self.replay(schedule, self.prompts[place].ids, text, listener=listener)

    def _texts_of(self, schedule: Schedule) -> list[ReplayedText]:
        if schedule not in self._texts:
            self._texts[schedule] = replayed_texts(self._acceptance, schedule, vocab_size=self._vocab_size)
        return self._texts[schedule]


def replayed_texts(acceptance: Acceptance, schedule: Schedule, *, vocab_size: int) -> list[ReplayedText]:
    """Return what the models have to say, prompt by prompt, for a schedule to have the rounds of an acceptance.

    Unknown token ids, and ids beyond `vocab_size`, are replaced. Raises `RecordError` if a record, or `ConfigError` if
    rates, do not cover the schedule.
    """
    replay = replay_of(acceptance)
    outcomes, walk = replay.outcomes(schedule, None), replay.walk(schedule, None)
    return [_text(outcomes, walk, prompt, vocab_size) for prompt in range(len(outcomes.starts))]


def arbitrary_prompt(length: int, vocab_size: int, *, number: int = 0) -> tuple[int, ...]:
    """Return made-up token ids for a prompt of known length; each `number` gives another prompt."""
    return tuple((place + 1 + number) * _STRIDE % vocab_size for place in range(length))


def vocab_size_of(pair: ModelPair) -> int:
    """Return the number of token ids that target and draft model have in common."""
    folders = [pair.target_folder]
    if pair.drafter is not None and kind_of(pair.drafter.folder) == CAUSAL_LM_KIND:
        folders.append(pair.drafter.folder)
    return min(ModelConfig.from_folder(folder).vocab_size for folder in folders)


def _text(outcomes: Outcomes, walk: Walk, prompt: int, vocab_size: int) -> ReplayedText:
    start, length = outcomes.starts[prompt], outcomes.lengths[prompt]
    text = [_within(token, place, vocab_size) for place, token in enumerate(outcomes.text[start : start + length])]
    drafted, sources = list(text), [NO_TOKEN] * length
    rounds = walk.prompt == prompt
    for at, num_accepted in zip(walk.at[rounds].tolist(), walk.num_accepted[rounds].tolist(), strict=True):
        end = at - start + num_accepted
        if end < length:
            drafted[end] = _other_than(text[end], outcomes.refused[at], vocab_size)
            sources[end] = outcomes.branches[at]
    return ReplayedText(
        prompt_length=outcomes.prompt_lengths[prompt],
        text=tuple(text),
        drafted=tuple(drafted),
        in_draft=tuple(source == FROM_DRAFT for source in sources),
        in_exit=tuple(source == FROM_EXIT for source in sources),
    )


def _within(token: int, place: int, vocab_size: int) -> int:
    """Return the token as an id of the vocabulary; an unknown token becomes an arbitrary id, fixed by its place."""
    return (place + 1) * _STRIDE % vocab_size if token == NO_TOKEN else token % vocab_size


def _other_than(token: int, wanted: int, vocab_size: int) -> int:
    """Return a draft to be refused in favour of `token`: `wanted` if it is known and differs, else the next id."""
    drafted = wanted % vocab_size
    return drafted if wanted != NO_TOKEN and drafted != token else (token + 1) % vocab_size
