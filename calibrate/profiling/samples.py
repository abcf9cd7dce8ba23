"""The samples of a calibration: all measured times, in order. A profile is computed from them and the task alone."""

import gzip
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from pydantic import BaseModel

from calibrate.fitting.ratios import AnchorRatio, among
from calibrate.profiling.anchors import AnchorSample, RunAnchors, SharedAnchor
from costs.round_plan import DRAFT_WORK, TARGET_WORK
from decoding.errors import ProfileError
from decoding.files import read_compressed, replace_file
from decoding.schedule import Schedule
from decoding.trace import Span, Trace, Work
from decoding.validation import errors_as
from runtime.wire.measurement import Measurement

_MAX_BYTES = 500_000_000
_OF_MODELS = TARGET_WORK | DRAFT_WORK
_SPIKE = 2.0
"""A repeat counts as at most this many times the median of its visit, since other programs cause spikes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One part at one size on one lane; `drafter` for a part of a drafter that is no draft model."""

    lane: str
    measurement: Measurement
    drafter: str | None = None


@dataclass(frozen=True)
class Visit:
    """One visit of a cell: the seconds of each repeat, and the anchors before and after."""

    cell: Cell
    seconds: tuple[float, ...]
    before_s: float
    after_s: float
    at_s: float

    @cached_property
    def ratio(self) -> AnchorRatio:
        """Mean time of the repeats over the mean of the anchors."""
        median_s = sorted(self.seconds)[(len(self.seconds) - 1) // 2]
        return among(fmean([min(one, _SPIKE * median_s) for one in self.seconds]), (self.before_s, self.after_s))


class RunSpan(NamedTuple):
    """A span of a run, with the facts that its time depends on.

    Attributes:
        span: on one lane.
        context: tokens in the target's cache.
        is_start: whether it is a first step, as in `costs.prices`.
        shared: share of its time during which the other lane worked.
    """

    span: Span
    context: int
    is_start: bool
    shared: float


@dataclass(frozen=True)
class CalibrationRun:
    """A text that calibration decoded: schedule, trace and anchors. `is_check`: held back from fitting."""

    schedule: Schedule
    prompt_length: int
    trace: Trace
    anchors: RunAnchors
    is_check: bool
    at_s: float

    def contexts(self) -> list[int]:
        """Return the number of tokens in the target's cache at each round, and after the last."""
        committed = accumulate((entry.num_committed for entry in self.trace.rounds), initial=0)
        return [self.prompt_length - 1 + count for count in committed]

    @cached_property
    def spans(self) -> list[RunSpan]:
        """All spans except those of the first round, in the order of the trace."""
        contexts, starts, spans = self.contexts(), self._draft_starts(), self.trace.spans
        overlaps, found = self.schedule.traits.overlaps, list[RunSpan]()
        for span in spans:
            if not span.round:
                continue
            others = [one for one in spans if overlaps and one.lane != span.lane and one.work in _OF_MODELS]
            shared_s = sum(max(0.0, min(span.end_s, one.end_s) - max(span.start_s, one.start_s)) for one in others)
            shared = shared_s / (span.end_s - span.start_s) if shared_s else 0.0
            context = contexts[min(span.round, len(contexts) - 1)]
            found.append(RunSpan(span, context, span.start_s in starts, shared))
        return found

    def _draft_starts(self) -> set[float]:
        begun: dict[tuple[Work, int], list[float]] = defaultdict(list)
        for span in self.trace.spans:
            if span.work in DRAFT_WORK:
                begun[span.work, span.round].append(span.start_s)
        # without exit features, the first branch step of a round only reads the window's last token: it is no start
        num_reading = 0 if self.schedule.exit_features else 1
        starts = set[float]()
        for (work, _), times in begun.items():
            first = num_reading if work is Work.BRANCH_STEP else 0
            starts.update(sorted(times)[first : first + 1])
        return starts


@dataclass(frozen=True, slots=True)
class Together:
    """Times of one part alone and while the other lane works, for a pair (target's lane, draft's lane).

    `role` tells which lane of the pair was timed. `anchor_slowdown`: slowdown of that lane's shared anchors meanwhile.
    """

    pair: tuple[str, str]
    role: Literal["target", "draft"]
    alone_s: float
    shared_s: float
    alone_after_s: float
    anchor_slowdown: float = 1.0

    @property
    def slowdown(self) -> AnchorRatio:
        """Time while the other lane works, over the mean of the times alone before and after."""
        return among(self.shared_s, (self.alone_s, self.alone_after_s))


@dataclass(slots=True)
class Samples:
    """All measurements of a calibration.

    Attributes:
        anchors, shared_anchors: on one lane, and on two lanes at once.
        visits: timed cells.
        runs: decoded texts.
        together: parts on pairs of lanes, alone and while the other lane works.
        dispatch_s: by lane, time of each visit beyond the lane's own time: sending, waking up, answering.
        messages_s: by the draft's lane, seconds per hop of an exit message (without features, with features).
        num_passes: finished passes.
    """

    anchors: list[AnchorSample] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    runs: list[CalibrationRun] = field(default_factory=list)
    together: list[Together] = field(default_factory=list)
    shared_anchors: list[SharedAnchor] = field(default_factory=list)
    dispatch_s: dict[str, list[float]] = field(default_factory=dict)
    messages_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    num_passes: int = 0

    def ratios(self) -> Mapping[Cell, list[AnchorRatio]]:
        """Return the times of each cell's visits over their anchors."""
        found = defaultdict[Cell, list[AnchorRatio]](list)
        for visit in self.visits:
            found[visit.cell].append(visit.ratio)
        return found


def samples_beside(profile: Path, kind: Literal["samples", "unfinished"]) -> Path:
    """Return the path of the samples beside a profile: its name without `.yaml`, and `.KIND.json.gz`."""
    name = profile.name.removesuffix(".yaml").removesuffix(".yml")
    return profile.with_name(f"{name}.{kind}.json.gz")


class _Content(BaseModel):
    format: Literal["mirrorsd-samples-2"]
    question: str = ""
    """Hash of the task of an unfinished calibration (`calibrate.profiling.unfinished`)."""
    samples: Samples


def save_samples(samples: Samples, path: Path, question: str = "") -> None:
    """Write samples as compressed JSON, atomically; raises `ProfileError` if the file cannot be written."""
    content = _Content(format="mirrorsd-samples-2", question=question, samples=samples)
    left_out = {"samples": {"runs": {"__all__": {"trace": {"_round_start_s"}}}}}
    text = content.model_dump_json(exclude=left_out if question else left_out | {"question": True})
    with errors_as(ProfileError, f"{path}: cannot be written"):
        replace_file(path, gzip.compress(text.encode(), mtime=0))


def load_samples(path: Path, question: str = "") -> Samples:
    """Return samples that `save_samples` wrote.

    Raises `ProfileError` if the file is missing or damaged, has another format, or has another `question`.
    """
    with errors_as(ProfileError, f"{path}: not a readable file of a calibration's samples"):
        content = _Content.model_validate_json(read_compressed(path, _MAX_BYTES))
    if content.question != question:
        raise ProfileError(f"{path}: is of a calibration that was interrupted, of other models, lanes or options")
    return content.samples
