"""The engine: decodes texts with real models by any schedule, in lane processes that stay between calls."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from threading import Lock
from typing import Final, Self

from decoding.errors import ConfigError, LaneDiedError, LaneError, LaneTimeoutError
from decoding.schedule import Schedule
from decoding.sequence import DecodedSequence
from decoding.trace import Trace
from decoding.validation import require_whole
from runtime.backends.devices import require_readable_cache
from runtime.backends.lane_device import Dtype
from runtime.garbage_collection import no_collection
from runtime.lanes.lane import Lane, LaneSpec
from runtime.lanes.lane_calls import Deadline, DraftCalls, TargetCalls, require_fitting
from runtime.lanes.lane_set import LaneSet
from runtime.lanes.sequence_lanes import NOBODY, Listener, RuntimeLanes, TraceWriter, drive
from runtime.memory.model_bytes import DraftSize
from runtime.memory.needs import LaneNeed, Room, draft_size, host_needed, memory_needed
from runtime.models.config import ModelConfig
from runtime.models.model_folder import has_random_weights
from runtime.target.target_model import TargetModel
from runtime.verification.replayed_text import ReplayedText, require_replayable
from runtime.verification.rules import is_lossy, require_temperature, seed_of
from runtime.wire.operations import DrafterTraits, RowInvariance, SequenceStart

_COMPILED_ROWS: Final = (1, 16)
"""Two sizes of calls, even after padding (`row_floor`), so that all graphs of a medium-sized decoder are compiled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A decoded sequence: the new tokens, including EOS if it was reached, and the trace."""

    tokens: tuple[int, ...]
    trace: Trace


class Engine:
    """One target, and the lanes that run it and its drafters; a context manager.

    Lane processes start when a schedule first needs them (again if they were lost) and stay until `close`; each loads a
    model once. Methods that load raise `MirrorsdError` if a lane cannot start or a model cannot be loaded. A drafter is
    given by name or folder; None means the engine's `drafter_folder`.
    """

    def __init__(
        self,
        target_folder: str | Path,
        *,
        lanes: Sequence[LaneSpec],
        drafter_folder: str | Path | None = None,
        exits_folder: str | Path | None = None,
        dtype: Dtype = "bfloat16",
        draft_deadline_s: float = 2.0,
        target_deadline_s: float = 60.0,
    ) -> None:
        """Create an engine without starting any process.

        Args:
            target_folder: Hugging Face folder of the target.
            lanes: where to run; schedules refer to them by name.
            drafter_folder: the drafter of schedules that name none.
            exits_folder: trained exit adapters; without them, exits use the final norm and `lm_head` alone.
            dtype: weight format of lanes that have none.
            draft_deadline_s: seconds without an answer after which a draft lane is given up; ten minutes for loading.
            target_deadline_s: seconds without an answer after which a target's lane is ended with an error; no limit
                for loading. Both deadlines grow by as much again for every 64 rows of an operation, and are at least
                20 times the longest operation so far in the sequence.

        Raises:
            ConfigError: two lanes share a name, or a deadline is not above 0.
            ModelError: the target's folder is not a supported model.
        """
        for name, deadline_s in (("draft", draft_deadline_s), ("target", target_deadline_s)):
            if not deadline_s > 0:
                raise ConfigError(f"{name}_deadline_s is {deadline_s}: it must be above 0")
        target = Path(target_folder)
        drafter, exits = (None if folder is None else Path(folder) for folder in (drafter_folder, exits_folder))
        self.target_folder, self.config = target, ModelConfig.from_folder(target)
        self._exits, self._lanes = exits, LaneSet(lanes, target=target, drafter=drafter, exits=exits, dtype=dtype)
        self._dtype, self._room, self._is_decoding = dtype, Room(), Lock()
        self._draft_deadline_s, self._target_deadline_s = draft_deadline_s, target_deadline_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all lane processes."""
        self._lanes.close()

    def lane(self, name: str) -> Lane:
        """Return a lane by name; raise `ConfigError` if there is none."""
        return self._lanes[name]

    def load_target(self, lane: str) -> Lane:
        """Start a lane and load the target and its exits into it, unless that was done before."""
        with self._room.loading(lane, running=self._lanes.running):
            self.take_room(Schedule(method="autoregressive", target_lane=lane), 1)
            return self._lanes.load_target(lane)

    def compile_target(self, lane: str, exit_layer: int | None, drafters: Iterable[str | None]) -> None:
        """Load the target, and compile it for an exit and for drafters that read its hidden states.

        Later, another exit or drafter would compile layers again. Compiles only on devices with dynamic shapes.
        """
        target = self.load_target(lane)
        if target.spec.device.has_dynamic_shapes:
            traits = [self._lanes.load_draft(lane, drafter)[1] for drafter in drafters]
            feature_layers = {layer for one in traits for layer in one.feature_layers}
            compiled = target.request(
                TargetModel.prepare,
                num_prompt=0,
                num_slots=_COMPILED_ROWS[-1],
                rows=_COMPILED_ROWS,
                feature_layers=tuple(sorted(feature_layers)),
                exit_layer=exit_layer,
            )
            compiled.result()

    def row_invariance(self, lane: str) -> RowInvariance:
        """Test whether the target's lane is batch-invariant, which takes as long as some tens of tokens.

        If it is, all methods except those with trees write exactly the text of plain decoding.
        """
        return self.load_target(lane).request(TargetModel.check_rows).result().value

    def load_draft(self, lane: str, drafter: str | None = None) -> Lane:
        """Start a lane and load a drafter into it."""
        return self._lanes.load_draft(lane, drafter)[0]

    def load_streams(self, lane: str, drafter: str | None = None) -> Lane:
        """Start a lane and load the target and its streams into it."""
        return self._lanes.load_streams(lane, drafter)

    def generate(
        self,
        schedule: Schedule,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        eos_token_ids: Collection[int] | None = None,
        listener: Listener = NOBODY,
    ) -> Generation:
        """Decode one sequence by a schedule, after loading the models that it needs.

        `prompt` has at least one token id. Decoding ends after `max_new_tokens`, or with one of `eos_token_ids` (None:
        the model's). Temperature 0 is greedy; above it, `seed` and the prompt determine all random numbers (`seed_of`).

        Raises:
            ConfigError: an argument is wrong, the schedule does not fit these models and lanes, or another sequence is
                being decoded.
            ModelError: a model cannot be loaded, or there is no room for it (`MemoryFitError`).
            LaneError: the target's lane was lost (`LaneDiedError`), exceeded its deadline (`LaneTimeoutError`) or
                failed; `tokens` of the error are those committed before.
        """
        ids = list(map(index, prompt))
        start = SequenceStart(  # with Python's numbers, as messages to lanes cannot hold numpy's
            prompt=ids,
            max_new_tokens=index(max_new_tokens),
            schedule=schedule,
            temperature=float(temperature),
            seed=seed_of(index(seed), ids),
        )
        return self._decode(start, self.config.eos_token_ids if eos_token_ids is None else eos_token_ids, listener)

    def replay(
        self, schedule: Schedule, prompt: Sequence[int], text: ReplayedText, *, listener: Listener = NOBODY
    ) -> Generation:
        """Decode like `generate` with all its work, but with a known text and acceptance; the trace's label says so.

        Raises `ConfigError` for a prompt of another length or a schedule without replay, and the errors of `generate`.
        """
        ids = list(map(index, prompt))
        self.check_replay(schedule, ids, text)
        start = SequenceStart(
            prompt=ids, max_new_tokens=len(text.text), schedule=schedule, temperature=0.0, seed=0, replay=text
        )
        return self._decode(start, (), listener)

    def check_replay(self, schedule: Schedule, prompt: Sequence[int], text: ReplayedText) -> None:
        """Raise the `ConfigError` that `replay` would raise before it loads anything."""
        require_replayable(schedule, prompt, text, self.config.vocab_size)
        self.check(schedule, prompt, len(text.text), temperature=0.0)

    def _decode(self, start: SequenceStart, eos_token_ids: Collection[int], listener: Listener) -> Generation:
        """Check and decode; refuse a second sequence at the same time, since lanes hold the KV cache of one."""
        self.check(start.schedule, start.prompt, start.max_new_tokens, start.temperature)
        if not self._is_decoding.acquire(blocking=False):
            raise ConfigError("this engine is decoding another sequence; it decodes one at a time")
        try:
            return self._decode_checked(start, eos_token_ids, listener)
        finally:
            self._is_decoding.release()

    def _decode_checked(self, start: SequenceStart, eos_token_ids: Collection[int], listener: Listener) -> Generation:
        schedule, prompt, max_new_tokens = start.schedule, start.prompt, start.max_new_tokens
        sequence = DecodedSequence(prompt, max_new_tokens=max_new_tokens, eos_token_ids=eos_token_ids)
        # for all lanes at once: `Room.take` drops what it has noted for lanes that are not running yet
        self.take_room(schedule, len(prompt) + max_new_tokens)
        target_lane = self._lanes.load_target(schedule.target_lane)
        if schedule.traits.drafts_itself:
            self.load_streams(schedule.target_lane, schedule.drafter)
        writer, deadline = TraceWriter(), Deadline(self._target_deadline_s)
        draft, traits = self._draft_of(schedule, writer, deadline, sequence)
        target = TargetCalls(target_lane, schedule, writer, deadline)
        lanes = RuntimeLanes(target=target, draft=draft, sequence=sequence, writer=writer, listener=listener)
        try:
            with no_collection():
                lanes.prefill(start, traits)
                drive(schedule.traits.flow(lanes, schedule), lanes.rest)
        except LaneError as error:
            raise type(error)(error, tokens=sequence.tokens) from error
        finally:
            if draft is not None:
                draft.drop()
        trace = writer.finish(schedule.target_lane)
        folders = [self.target_folder, *([] if traits is None else [traits.folder])]
        labels = {
            "random weights": any(map(has_random_weights, folders)),
            "replayed acceptance": start.replay is not None,
            f"the lossy rule {schedule.verification}": is_lossy(schedule.verification, start.temperature),
        }
        trace.label = ", ".join(label for label, holds in labels.items() if holds)
        return Generation(tokens=tuple(sequence.tokens), trace=trace)

    def check(self, schedule: Schedule, prompt: Sequence[int], max_new_tokens: int, temperature: float) -> None:
        """Raise the `ConfigError` that `generate` would raise before it loads anything."""
        config = self.config
        if schedule.traits.is_simulated_only:
            raise ConfigError(f"method {schedule.method} is simulated only: no drafter drafts so on real lanes yet")
        for name in filter(None, (schedule.target_lane, schedule.draft_lane)):
            self.lane(name)
        if schedule.traits.drafts_itself:
            require_readable_cache(schedule.target_lane, schedule.method)
        if schedule.exit_layer is not None and schedule.exit_layer >= config.num_layers:
            raise ConfigError(
                f"exit_layer {schedule.exit_layer} is not before the target's last layer {config.num_layers}"
            )
        if not prompt or not all(0 <= token < config.vocab_size for token in prompt):
            raise ConfigError(f"the prompt must be token ids from 0 to {config.vocab_size - 1}, at least one")
        require_whole("max_new_tokens", max_new_tokens, 1)
        require_temperature(temperature, schedule.verification)
        draft, num_drafted = self._draft_size(schedule), schedule.num_speculative_tokens
        what = f"{len(prompt)} tokens of prompt, {max_new_tokens} new ones and windows"
        num_tokens = len(prompt) + max_new_tokens
        for whose, most in {"the target": config, "the draft": config if draft is None else draft.layers}.items():
            most.require_positions(num_tokens, num_drafted, what=what, whose=whose)

    def memory_needed(self, schedule: Schedule, num_tokens: int) -> dict[str, LaneNeed]:
        """Return the memory that a schedule needs, by lane, for a sequence of `num_tokens`, prompt included."""
        draft = self._draft_size(schedule)
        streams = self._lanes.drafter_folder(schedule.drafter) if schedule.traits.drafts_itself else None
        parts = filter(None, (self._exits, streams))
        return memory_needed(self.config, schedule, dtype=self._dtype, num_tokens=num_tokens, draft=draft, parts=parts)

    def _draft_size(self, schedule: Schedule) -> DraftSize | None:
        if schedule.draft_lane is None:
            return None
        folder = self._lanes.drafter_folder(schedule.drafter)
        return draft_size(folder, self.config, self._dtype, shares_lane=schedule.is_pooled)

    def take_room(self, schedule: Schedule, num_tokens: int) -> None:
        """Note what lanes need of this machine's memory; raise `MemoryFitError` if not enough is available."""
        needs = self.memory_needed(schedule, num_tokens)
        for lane in needs:
            needs[lane] += LaneNeed(weights=self._bytes_kept(lane, schedule))
        needs = host_needed(self.config, needs, self._dtype)
        self._room.take(needs, running=self._lanes.running)

    def _bytes_kept(self, lane: str, schedule: Schedule) -> int:
        """Return the bytes of the drafters that a lane keeps loaded, without that of this schedule."""
        used = self._lanes.drafter_folder(schedule.drafter) if lane == schedule.draft_lane else None
        others = [folder for folder in self._lanes.kept(lane) if folder != used]
        shares = lane == schedule.target_lane
        return sum(draft_size(folder, self.config, self._dtype, shares_lane=shares).weights for folder in others)

    def _draft_of(
        self, schedule: Schedule, writer: TraceWriter, target_deadline: Deadline, sequence: DecodedSequence
    ) -> tuple[DraftCalls | None, DrafterTraits | None]:
        if schedule.draft_lane is None:
            return None, None
        lane = self.lane(schedule.draft_lane)
        deadline = target_deadline if schedule.is_pooled else Deadline(self._draft_deadline_s)
        draft = DraftCalls(lane, schedule, writer, deadline, sequence)
        try:
            _, traits = self._lanes.load_draft(schedule.draft_lane, schedule.drafter)
        except (LaneDiedError, LaneTimeoutError) as error:
            draft.lose(error)
            return draft, None
        require_fitting(schedule, traits)
        return draft, traits
