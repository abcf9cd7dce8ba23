"""Records what a model pair would do at every position of its own texts: the input of every replay.

A record is made in this process, prompt by prompt; finished prompts are kept in a file beside it, and a rerun with the
same models, prompts and settings goes on after them. Texts are greedy, or sampled with the draws of their seeds.

A replay of the record's chains equals the real rounds exactly, in any dtype, because a row has the same bits whatever
rows are computed with it (`runtime.models.row_invariance`). Trees are the exception (`runtime.models.masks.TreeRows`):
where the target's two best logits nearly tie, a real run may take the other token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrate.prompts import EncodedPrompt
from calibrate.recording.fingerprint import fingerprint
from calibrate.recording.partial_record import PartialRecord
from calibrate.recording.recorded_models import RecordedModels
from calibrate.recording.recorded_text import TargetText, WantedText, require_room
from calibrate.recording.recorded_trees import DynamicShape
from calibrate.recording.sampled_drafts import SampledDrafts, SampledText, sampled_drafts
from calibrate.recording.texts_side_by_side import TextWriter
from decoding.errors import RecordError
from decoding.record import AcceptanceRecord, Ids, PromptRecord
from decoding.recorded.prompt_record import hash_of_ids
from hwprofiles.host import computing_host
from runtime.backends.eager import EagerBackend
from runtime.drafters.language_model.rollouts import rollouts_everywhere
from runtime.target.early_exits import exit_of
from runtime.verification.distributions import require_temperature
from runtime.verification.rules import GREEDY, Sampling

Progress = Callable[[str, float], None]
"""Called with the prompt under way and the share that is done, 0 to 1."""

Enough = Callable[[float], bool]
"""Whether to stop; called with the seconds that the next prompts will take, by those so far."""
USUAL_TREES: Final[tuple[DynamicShape, ...]] = ((2, 4), (3, 4), (5, 4), (5, 8))
"""Shallow ones for devices where every step of a head counts, wide ones for those where it does not."""
_PROMPTS_PER_SAVE = 8
_EXIT_ROWS = 16
"""Rows that an exit reads at once: of a window there are no more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordSettings:
    """How far a record reaches.

    Attributes:
        exit_layers: counted from 1; a layer without an adapter is read by the plain logit lens.
        num_alternatives: the draft's own ids per position, its drafted token included.
        num_exit_candidates: ids per position and exit, best first.
        trees: depth and top_k of every dynamic tree to record; static trees have a shape of their own.
        temperature: at which the target's texts are sampled; 0 for greedy ones, of which there is one for each prompt.
        seed: of a prompt's first text; the others have the next ones.
    """

    exit_layers: tuple[int, ...]
    max_new_tokens: int = 64
    max_window: int = 8
    num_alternatives: int = 9
    num_exit_candidates: int = 17
    trees: tuple[DynamicShape, ...] = USUAL_TREES
    temperature: float = 0.0
    num_texts: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise `RecordError` for several greedy texts or none, and `ConfigError` for those that mean nothing."""
        require_temperature(self.temperature)
        if self.num_texts < 1 or (self.num_texts > 1 and not self.temperature):
            msg = (
                f"{self.num_texts} texts of every prompt at temperature {self.temperature:g}: greedy ones are one each"
            )
            raise RecordError(msg)

    def sampling(self, number: int) -> Sampling:
        """How a prompt's text of that number is chosen: as plain decoding does, which `match` leaves as it is."""
        return Sampling("match", self.temperature, self.seed + number) if self.temperature else GREEDY


def record_acceptance(
    models: RecordedModels,
    prompts: Sequence[EncodedPrompt],
    settings: RecordSettings,
    path: Path,
    progress: Progress = lambda _step, _share: None,
    enough: Enough = lambda _next_s: False,
) -> AcceptanceRecord:
    """Record every prompt and write the result to `path`; `enough` may end it early.

    The work is done by as many threads as torch has in this process.

    Raises:
        RecordError: an exit layer is not the target's, a prompt is too long, or a file cannot be written.
    """
    recorder = Recorder(models, settings)
    partial = PartialRecord(path, fingerprint(models, prompts, settings))
    done = partial.load()
    try:
        texts = [(prompt, number) for prompt in prompts for number in range(settings.num_texts)]
        first, longest_s = len(done), {True: 0.0, False: 0.0}
        starts, records = recorder.starts(texts[first:]), recorder.records(texts[first:])
        for index in range(first, len(texts)):
            is_start = index - first in starts
            if index > first and enough(longest_s[is_start]):
                break
            progress(texts[index][0].name, index / len(texts))
            begun_s = time.monotonic()
            done.append(next(records))
            longest_s[is_start] = max(longest_s[is_start], time.monotonic() - begun_s)
            if len(done) % _PROMPTS_PER_SAVE == 0:
                partial.save(recorder.assemble(done))
    except BaseException:
        if done:
            partial.save(recorder.assemble(done))
        raise
    record = recorder.assemble(done)
    record.save(path)
    partial.remove()
    progress("done", 1.0)
    return record


class Recorder:
    """Records prompt by prompt.

    Raises:
        RecordError: an exit layer is not the target's.
    """

    def __init__(self, models: RecordedModels, settings: RecordSettings) -> None:
        num_layers = models.target.config.num_layers
        wrong = [layer for layer in settings.exit_layers if not 1 <= layer < num_layers]
        if wrong:
            msg = f"exit layer {wrong[0]} is outside 1..{num_layers - 1}: the target has {num_layers} layers"
            raise RecordError(msg)
        self.models, self.settings = models, settings
        self._target = models.backend or EagerBackend(models.target)
        self._early_exit = exit_of(models.target.lm_head.weight.detach(), models.exits, self._target)
        self._trees = [(head, tuple(head.trees(settings.trees))) for head in models.heads]
        head_layers = [layer for head in models.heads for layer in head.layers]
        self._writer = TextWriter(
            self._target,
            max_new_tokens=settings.max_new_tokens,
            layers=(*settings.exit_layers, *models.feature_layers, *head_layers),
        )

    def records(self, texts: Sequence[tuple[EncodedPrompt, int]]) -> Iterator[PromptRecord]:
        """Everything that schedules could ask about some texts of prompts, by their numbers; each when it is due.

        Raises:
            RecordError: a prompt and its text do not fit in the target's positions.
        """
        for prompt, _ in texts:
            try:
                require_room(self._target.config, len(prompt.ids), self.settings.max_new_tokens)
            except RecordError as error:
                msg = f"prompt {prompt.name}: {error}"
                raise RecordError(msg) from error
        samplings = [self.settings.sampling(number) for _, number in texts]
        wanted = [WantedText(prompt.ids, sampling) for (prompt, _), sampling in zip(texts, samplings, strict=True)]
        for (prompt, _), sampling, text in zip(texts, samplings, self._writer.write(wanted), strict=True):
            yield self._described(prompt, sampling, text)

    def starts(self, texts: Sequence[tuple[EncodedPrompt, int]]) -> set[int]:
        """Places of the texts with which a group begins: these take the time to write all of it."""
        wanted = [WantedText(prompt.ids, self.settings.sampling(number)) for prompt, number in texts]
        return {0, *accumulate(map(len, self._writer.groups(wanted)))}

    def record(self, prompt: EncodedPrompt, number: int = 0) -> PromptRecord:
        """One of `records`."""
        return next(self.records([(prompt, number)]))

    def _described(self, prompt: EncodedPrompt, sampling: Sampling, text: TargetText) -> PromptRecord:
        settings, feature_layers = self.settings, self.models.feature_layers
        ids = [*prompt.ids, *text.tokens]
        rollouts = self._roll_out(ids, len(prompt.ids), None)
        feature_rollouts, features_TE = rollouts.up_to(0), None
        if feature_layers:
            hidden_TED = torch.stack([text.states[layer] for layer in feature_layers], dim=1)
            features_TE = self._target.features(hidden_TED, is_raw=False)
            feature_rollouts = self._roll_out(ids, len(prompt.ids), features_TE)
        sampled = SampledText(ids, len(prompt.ids), text.probabilities, sampling)
        drafts, feature_drafts = (self._sample(sampled, features) for features in (None, features_TE))
        self._early_exit.add_prompt_tokens(prompt.ids)
        after_prompt = slice(len(prompt.ids) - 1, None)
        return PromptRecord(
            name=prompt.name if settings.num_texts == 1 else f"{prompt.name}, seed {sampling.seed}",
            category=prompt.category,
            prompt_length=len(prompt.ids),
            prompt_hash=hash_of_ids(prompt.ids),
            text=np.array(text.tokens, dtype=np.int32),
            rollouts=rollouts.tokens,
            feature_rollouts=feature_rollouts.tokens,
            alternatives=rollouts.alternatives,
            stream_hits=rollouts.stream_hits,
            feature_stream_hits=feature_rollouts.stream_hits,
            exits={layer: self._read_exit(text.states[layer][after_prompt], layer) for layer in settings.exit_layers},
            tree_ranks=tuple(self._grow(ids, len(prompt.ids), text.states)),
            chain_drafts=tuple(
                finder.windows(ids, start=len(prompt.ids), max_window=settings.max_window)
                for finder in self.models.finders
            ),
            margins=np.array(text.margins, dtype=np.float32),
            draft_acceptance=drafts.acceptance,
            refused_drafts=drafts.refused,
            feature_draft_acceptance=feature_drafts.acceptance if feature_layers else drafts.acceptance[:0],
            feature_refused_drafts=feature_drafts.refused if feature_layers else drafts.refused[:0],
        )

    def assemble(self, prompts: Sequence[PromptRecord]) -> AcceptanceRecord:
        """A record of the prompts given."""
        return AcceptanceRecord(
            target=self.models.target_name,
            drafter=self.models.drafter_name,
            dtype=self.models.dtype,
            max_window=self.settings.max_window,
            max_new_tokens=self.settings.max_new_tokens,
            exit_layers=self.settings.exit_layers,
            feature_layers=self.models.feature_layers,
            num_streams=self.models.num_streams,
            prompts=tuple(prompts),
            trees=tuple(tree for _, trees in self._trees for tree in trees),
            chains=tuple(finder.chain for finder in self.models.finders),
            temperature=self.settings.temperature,
            seed=self.settings.seed if self.settings.temperature else 0,
            backend=self.models.computed_by,
            host=computing_host(self.models.computed_by),
        )

    def _roll_out(self, ids: Sequence[int], start: int, features_TE: Tensor | None) -> _Rollouts:
        """What the draft model drafts after every prefix of the text; nothing without one."""
        if self.models.draft is None:
            return _Rollouts(*(np.zeros((0, 0), dtype=np.int32) for _ in _Rollouts._fields))
        result = rollouts_everywhere(
            self.models.draft,
            ids,
            start=start,
            num_tokens=self.settings.max_window,
            num_alternatives=self.settings.num_alternatives,
            features_TE=features_TE,
        )
        hits = result.stream_hits if self.models.draft.streams is not None else result.stream_hits[:0]
        return _Rollouts(_ids(result.tokens), _ids(result.alternatives[:, 0]), _ids(hits))

    def _sample(self, text: SampledText, features_TE: Tensor | None) -> SampledDrafts:
        """What a sampling draft gets accepted; nothing of a greedy text, or without a draft model."""
        if self.models.draft is None or text.sampling.is_greedy:
            return SampledDrafts(np.zeros((0, 0), dtype=np.float32), np.zeros((0, 0), dtype=np.int32))
        window = self.settings.max_window
        return sampled_drafts(self.models.draft, text, max_window=window, features_TE=features_TE)

    def _grow(self, ids: Sequence[int], start: int, states: Mapping[int, Tensor]) -> Iterator[Ids]:
        """Places of the nodes that hold the text in every tree, [N, depth] each."""
        for head, trees in self._trees:
            if trees:
                yield from head.ranks(trees, ids, start=start, states=states, target=self._target)

    def _read_exit(self, x_ND: Tensor, layer: int) -> Ids:
        """The exit's best ids for the place after each state, [N, K]."""
        x_BTD, count = x_ND[None].to(self._target.device), self.settings.num_exit_candidates
        blocks = [self._early_exit.read(block, layer, count) for block in torch.split(x_BTD, _EXIT_ROWS, dim=1)]
        return np.array([row for candidates, _ in blocks for row in candidates], dtype=np.int32)


class _Rollouts(NamedTuple):
    """Drafted tokens [N, W], alternatives for the first of them [N, F], and right guesses of streams [N, W]."""

    tokens: Ids
    alternatives: Ids
    stream_hits: Ids

    def up_to(self, count: int) -> _Rollouts:
        """The first so many positions alone."""
        return _Rollouts(*(ids[:count] for ids in self))


def _ids(ids: Tensor) -> Ids:
    return ids.cpu().numpy().astype(np.int32)
