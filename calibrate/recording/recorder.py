"""Records acceptance: what each drafter proposes, and each exit names, at every position of the target's texts.

Finished prompts are saved in a file beside the record, and a rerun with the same models, prompts and settings continues
after them. A replay of chains equals the real rounds exactly, in any dtype (`runtime.models.row_invariance`). With
trees a real run may take another token at a near tie of the target's two best logits.
"""

import glob
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.prompts import EncodedPrompt, own_seeds
from calibrate.recording.reach import Reach, usual_exits
from calibrate.recording.recorded_models import RecordedModels, fingerprint
from calibrate.recording.recorded_text import TargetText, TextWriter, WantedText
from calibrate.recording.sampled_drafts import SampledText, sampled_drafts
from decoding.errors import RecordError
from decoding.progress import ReportProgress
from decoding.record import AcceptanceRecord, Ids, PromptRecord
from decoding.recorded.prompt_record import hash_of_ids
from hwprofiles.host import computing_host
from runtime.arrays import Array, is_tensor, stacked
from runtime.drafters.language_model.rollouts import rollouts_everywhere
from runtime.verification.rules import Sampling
from runtime.wire.stops import working_s

_SAVED_EVERY_S = 10.0
"""Most seconds of finished work that a crash without cleanup, such as a power cut, can lose."""
_EXIT_ROWS = 16
"""Rows that an exit reads at once; windows have no more rows."""


def record_acceptance(
    models: RecordedModels,
    prompts: Sequence[EncodedPrompt],
    reach: Reach,
    path: Path,
    progress: ReportProgress = lambda _step, _share: None,
) -> AcceptanceRecord:
    """Record all prompts and write the record to `path`; ends early by `reach.enough`, or when the file is full.

    Computes with torch's number of threads in this process.

    Raises:
        ConfigError: a prompt is too long for the models.
        RecordError: an exit layer is not the target's, or a file cannot be written.
    """
    recorder = Recorder(models, reach)
    partial = PartialRecord(path, fingerprint(models, prompts, reach))
    done = partial.load()
    try:
        texts = recorder.texts(prompts)
        first, longest_s = len(done), {True: 0.0, False: 0.0}
        empty, size = recorder.assemble(()).file_size, recorder.assemble(done).file_size
        records = recorder.records(texts[first:])
        saved_s = time.monotonic()
        for index in range(first, len(texts)):
            is_written = recorder.next_is_written
            if index > first and reach.enough(longest_s[is_written]):
                break
            progress(texts[index][0].name, index / len(texts))
            begun_s = working_s()
            one = next(records)
            size = size.with_prompt(recorder.assemble([one]).file_size, empty)
            if done and size.complaint is not None:
                break
            done.append(one)
            longest_s[is_written] = max(longest_s[is_written], working_s() - begun_s)
            if time.monotonic() - saved_s > _SAVED_EVERY_S:
                recorder.assemble(done).save(partial.path)
                saved_s = time.monotonic()
    except BaseException:
        if done:
            recorder.assemble(done).save(partial.path)
        raise
    record = recorder.assemble(done)
    record.save(path)
    partial.remove()
    progress("done", 1.0)
    return record


class PartialRecord:
    """The file with the prompts recorded so far; its name contains the record's name and fingerprint."""

    def __init__(self, path: Path, name: str) -> None:
        self._final_name = path.name
        self.path = path.with_name(f".{path.name}.{name}.npz")

    def load(self) -> list[PromptRecord]:
        """Return the prompts that an interrupted run left, if any; raises `RecordError` if the file is damaged."""
        try:
            return list(AcceptanceRecord.load(self.path).prompts) if self.path.exists() else []
        except RecordError as error:
            raise RecordError(f"{error}; an interrupted run left it: delete it, and all is recorded again") from error

    def remove(self) -> None:
        """Remove the file, and those that interrupted runs with other settings left for the same record."""
        for file in self.path.parent.glob(f".{glob.escape(self._final_name)}.*.npz"):
            file.unlink(missing_ok=True)


class Recorder:
    """Records prompt by prompt. The constructor raises `RecordError` for an exit layer that the target lacks."""

    def __init__(self, models: RecordedModels, reach: Reach) -> None:
        num_layers = models.target.config.num_layers
        usual = models.target.early_exit.trained_layers or usual_exits(num_layers, models.feature_layers)
        self.exit_layers = usual if reach.exit_layers is None else reach.exit_layers
        wrong = [layer for layer in self.exit_layers if not 1 <= layer < num_layers]
        if wrong:
            raise RecordError(
                f"exit layer {wrong[0]} is outside 1..{num_layers - 1}: the target has {num_layers} layers"
            )
        self.models, self.reach = models, reach
        self._target, self._early_exit = models.target.backend, models.target.early_exit
        self._trees = [(head, tuple(head.trees(reach.trees))) for head in models.heads]
        head_layers = [layer for head in models.heads for layer in head.drafter.feature_layers]
        self._writer = TextWriter(
            self._target,
            max_new_tokens=reach.max_new_tokens,
            layers=(*self.exit_layers, *models.feature_layers, *head_layers),
        )

    def texts(self, prompts: Sequence[EncodedPrompt]) -> list[tuple[EncodedPrompt, int]]:
        """Return (prompt, number) of each text to write; texts of prompts with equal token ids are numbered on."""
        asked = [prompt for prompt in prompts for _ in range(self.reach.num_texts)]
        is_greedy = self.reach.temperature == 0  # greedy texts of a prompt are equal: number 0
        numbers = [0] * len(asked) if is_greedy else own_seeds([prompt.ids for prompt in asked], 0)
        return list(zip(asked, numbers, strict=True))

    def records(self, texts: Sequence[tuple[EncodedPrompt, int]]) -> Iterator[PromptRecord]:
        """Yield the record of each text (prompt, number), in order, as soon as it is finished.

        Raises `ConfigError` for a prompt that with its text and windows exceeds the models' positions.
        """
        for prompt, _ in texts:
            self._require_positions(prompt)
        wanted = [WantedText(prompt.ids, self.reach.sampling(prompt.ids, number)) for prompt, number in texts]
        for (prompt, number), one, text in zip(texts, wanted, self._writer.write(wanted), strict=True):
            yield self._described(prompt, number, one.sampling, text)

    def _require_positions(self, prompt: EncodedPrompt) -> None:
        models, num_new, target = self.models, self.reach.max_new_tokens, self._target.config
        num_tokens, draft = len(prompt.ids) + num_new, models.draft
        num_drafted = self.reach.max_window if draft or models.heads or models.finders else 0
        windows = f"windows (--max-window {num_drafted})" if num_drafted else "windows"
        what = f"prompt {prompt.name}: {len(prompt.ids)} tokens of prompt, {num_new} new ones and {windows}"
        drafts = target if draft is None else draft.decoder.config
        for whose, most in {"the target": target, "the draft": drafts}.items():
            most.require_positions(num_tokens, num_drafted, what=what, whose=whose)

    @property
    def next_is_written(self) -> bool:
        """Whether the text of the next record is written already, so that this record will take less time."""
        return self._writer.next_is_written

    def _described(self, prompt: EncodedPrompt, number: int, sampling: Sampling, text: TargetText) -> PromptRecord:
        reach, feature_layers, start = self.reach, self.models.feature_layers, len(prompt.ids)
        ids = [*prompt.ids, *text.tokens]
        written = SampledText(ids, start, text.probabilities, sampling)
        drafted = self._draft(written, None)
        with_features = {name: rows[:0] for name, rows in drafted.items()}
        if feature_layers:
            hidden_TED = stacked([text.states[layer] for layer in feature_layers], 1)
            with_features = self._draft(written, self._target.features(hidden_TED, is_raw=False))
        del with_features["alternatives"]
        self._early_exit.add_prompt_tokens(prompt.ids)
        return PromptRecord(
            name=prompt.name if reach.num_texts == 1 and not number else f"{prompt.name}, seed {reach.seed + number}",
            category=prompt.category,
            prompt_length=start,
            prompt_hash=hash_of_ids(prompt.ids),
            text=np.array(text.tokens, dtype=np.int32),
            exits={layer: self._read_exit(text.states[layer][start - 1 :], layer) for layer in self.exit_layers},
            tree_ranks=tuple(
                ranks
                for head, trees in self._trees
                if trees
                for ranks in head.ranks(trees, ids, start=start, states=text.states, target=self._target)
            ),
            chain_drafts=tuple(
                finder.windows(ids, start=start, max_window=reach.max_window) for finder in self.models.finders
            ),
            margins=np.array(text.margins, dtype=np.float32),
            **drafted,
            **{f"feature_{name}": rows for name, rows in with_features.items()},
        )

    def assemble(self, prompts: Sequence[PromptRecord]) -> AcceptanceRecord:
        """Return an acceptance record of some prompts."""
        return AcceptanceRecord(
            target=self.models.target_name,
            drafter=self.models.drafter_name,
            exits=self.models.exits_name,
            dtype=self.models.dtype,
            max_window=self.reach.max_window,
            max_new_tokens=self.reach.max_new_tokens,
            exit_layers=self.exit_layers,
            feature_layers=self.models.feature_layers,
            num_streams=self.models.num_streams,
            prompts=tuple(prompts),
            trees=tuple(tree for _, trees in self._trees for tree in trees),
            chains=tuple(finder.chain for finder in self.models.finders),
            temperature=self.reach.temperature,
            seed=self.reach.seed if self.reach.temperature else 0,
            backend=self.models.computed_by,
            host=computing_host(self.models.computed_by),
        )

    def _draft(self, text: SampledText, features_TE: Array | None) -> dict[str, Any]:
        """Return the arrays of a `PromptRecord` that a draft model fills, by name; empty without a draft model."""
        draft, none = self.models.draft, np.zeros((0, 0), dtype=np.int32)
        drafted: dict[str, Any] = dict.fromkeys(("rollouts", "alternatives", "stream_hits", "refused_drafts"), none)
        drafted["draft_acceptance"] = none.astype(np.float32)
        if draft is None:
            return drafted
        result = rollouts_everywhere(
            draft,
            text.ids,
            start=text.start,
            num_tokens=self.reach.max_window,
            num_alternatives=self.reach.num_alternatives,
            features_TE=features_TE,
        )
        hits = result.stream_hits if draft.num_streams else result.stream_hits[:0]
        found = {"rollouts": result.tokens, "alternatives": result.alternatives[:, 0], "stream_hits": hits}
        drafted |= {name: ids.astype(np.int32) for name, ids in found.items()}
        if not text.sampling.is_greedy:
            sampled = sampled_drafts(draft, text, max_window=self.reach.max_window, features_TE=features_TE)
            drafted["draft_acceptance"], drafted["refused_drafts"] = sampled
        return drafted

    def _read_exit(self, x_ND: Array, layer: int) -> Ids:
        """Return the exit's best candidates for the token after each state, [N, K]."""
        x_ND, count = x_ND.to(self._target.device) if is_tensor(x_ND) else x_ND, self.reach.num_exit_candidates
        starts = range(0, len(x_ND), _EXIT_ROWS)
        blocks = [self._early_exit.read(x_ND[None, at : at + _EXIT_ROWS], layer, count) for at in starts]
        return np.array([row for candidates, _ in blocks for row in candidates], dtype=np.int32)
