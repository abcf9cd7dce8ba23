"""The training loop of all tasks (`StatesTask`): batches in a seeded order, AdamW, checkpoints, resumption.

A run that was interrupted and resumed ends with the same weights, bit for bit, on the same machine and thread count.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice, takewhile
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from decoding.errors import TrainingError
from decoding.files import replace_file
from decoding.validation import errors_as
from training.judging.card import CurvePoint
from training.recipe import Optimisation
from training.tasks.states_task import StatesTask

CHECKPOINT_FILE = "checkpoint.safetensors"
CURVE_FILE = "curve.json"
_CURVE = TypeAdapter(tuple[CurvePoint, ...])
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """State of a run.

    Attributes:
        num_tokens: answer tokens seen.
        loss: of the last step; NaN before the first.
        elapsed_s: over all resumptions.
        scores: held-out figures, empty if none were due.
    """

    step: int
    num_tokens: int
    loss: float
    elapsed_s: float
    scores: Mapping[str, float]


def train(
    task: StatesTask[Any],
    settings: Optimisation,
    folder: Path,
    *,
    progress: Callable[[Report], None] = lambda _: None,
    report_every_s: float = 10.0,
    save_every_s: float = 120.0,
    evaluate_every_tokens: int = 250_000,
) -> Report:
    """Train `task.module` in place, continuing from the checkpoint in `folder`, if any; return the last report.

    The checkpoint is saved before each evaluation, so that an evaluation that is interrupted is made on resumption.

    Raises `TrainingError` if the loss or gradient is not finite, or a checkpoint is damaged or cannot be written.
    """
    state = _State(task, settings, folder)
    resumed_s, started_s = state.elapsed_s, time.monotonic()
    next_report_s = next_save_s = 0.0
    points = [point.num_tokens for point in read_curve(folder) if point.num_tokens <= state.num_tokens]
    evaluated = max(points, default=0)

    def scores() -> Mapping[str, float]:
        """Evaluate if that is due, and add a point to the curve; return the scores, empty if not due."""
        nonlocal evaluated
        if not is_due():
            return {}
        found, evaluated = task.evaluate(), state.num_tokens
        add_point(folder, evaluated, found)
        return found

    def is_due() -> bool:
        return state.is_finished or state.num_tokens // evaluate_every_tokens > evaluated // evaluate_every_tokens

    last = state.report(scores())
    for batch in state.remaining_batches():
        state.advance(batch)
        state.elapsed_s = resumed_s + time.monotonic() - started_s
        if is_due() or state.elapsed_s >= next_save_s:
            state.save()
            next_save_s = state.elapsed_s + save_every_s
        if is_due() or state.elapsed_s >= next_report_s:
            last = state.report(scores())
            progress(last)
            next_report_s = state.elapsed_s + report_every_s
    return last


class _State:
    """Everything that a checkpoint holds: weights, optimiser moments, place in the data, random generator."""

    def __init__(self, task: StatesTask[Any], settings: Optimisation, folder: Path) -> None:
        self.task, self.settings, self.path = task, settings, folder / CHECKPOINT_FILE
        self.parameters = {name: p for name, p in task.module.named_parameters() if p.requires_grad}
        shares: dict[float, list[nn.Parameter]] = {}
        for name, parameter in self.parameters.items():
            shares.setdefault(task.rate_share(name), []).append(parameter)
        self.optimizer = torch.optim.AdamW(
            [{"params": parameters, "rate_share": share} for share, parameters in shares.items()],
            betas=(0.9, 0.95),
            weight_decay=settings.weight_decay,
            lr=settings.learning_rate,
        )
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.step = self.num_tokens = 0
        self.loss = math.nan
        self.elapsed_s = 0.0
        if self.path.is_file():
            self._load()

    @property
    def is_finished(self) -> bool:
        return self.num_tokens >= self.settings.num_tokens

    def report(self, scores: Mapping[str, float]) -> Report:
        return Report(
            step=self.step, num_tokens=self.num_tokens, loss=self.loss, elapsed_s=self.elapsed_s, scores=scores
        )

    def remaining_batches(self) -> Iterator[list[int]]:
        batches = (batch for epoch in count() for batch in self._epoch(epoch))
        yield from takewhile(lambda _: not self.is_finished, islice(batches, self.step, None))

    def advance(self, batch: list[int]) -> None:
        rate = learning_rate(self.settings, self.step, self.num_tokens)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate_share"]
        loss, num_tokens = self.task.loss(batch, self.generator)
        self.loss = float(loss.detach())
        self._require_finite("loss", self.loss)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), self.settings.max_gradient_norm)
        self._require_finite("gradient norm", float(norm))
        self.optimizer.step()
        self.step += 1
        self.num_tokens += num_tokens

    def save(self) -> None:
        tensors = {f"weight.{name}": p.detach() for name, p in self.parameters.items()}
        for name, parameter in self.parameters.items():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{key}.{name}"] = value
        tensors["generator"] = self.generator.get_state()
        tensors["place"] = torch.tensor([self.step, self.num_tokens, self.elapsed_s], dtype=torch.float64)
        content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, content)
        except OSError as error:
            kept = "the previous one is kept" if self.path.is_file() else "no checkpoint was written yet"
            msg = f"{self.path}: the checkpoint could not be written ({error}); {kept}"
            raise TrainingError(msg) from error

    def _load(self) -> None:
        try:
            tensors = load_file(self.path)
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    weight = tensors[f"weight.{name}"]
                    if weight.shape != parameter.shape:
                        raise ValueError(f"{name} has shape {tuple(weight.shape)}, not {tuple(parameter.shape)}")
                    parameter.copy_(weight)
                    moments = {key: tensors[f"optimizer.{key}.{name}"].to(parameter.device) for key in _MOMENTS}
                    self.optimizer.state[parameter] = {"step": tensors[f"optimizer.step.{name}"], **moments}
            self.generator.set_state(tensors["generator"])
            step, num_tokens, self.elapsed_s = tensors["place"].tolist()
        except (SafetensorError, OSError, KeyError, RuntimeError, ValueError) as error:
            msg = f"{self.path}: damaged, or of another recipe ({error}); delete it to start again"
            raise TrainingError(msg) from error
        self.step, self.num_tokens = int(step), int(num_tokens)

    def _require_finite(self, what: str, value: float) -> None:
        if math.isfinite(value):
            return
        kept = f"the last checkpoint, {self.path}, is kept" if self.path.is_file() else "no checkpoint was written yet"
        msg = f"the {what} is {value} at step {self.step}; {kept}: lower learning_rate, or check the data"
        raise TrainingError(msg)

    def _epoch(self, epoch: int) -> list[list[int]]:
        """Return shuffled batches of conversations of similar length; they depend only on seed and epoch."""
        seed = (self.settings.seed * 1_000_003 + epoch) % (1 << 63)  # torch accepts no larger seed
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(self.task.num_conversations, generator=generator).tolist()
        size = self.settings.conversations_per_step
        pool = size * 16
        batches = []
        for start in range(0, len(order), pool):
            chunk = sorted(order[start : start + pool], key=self.task.conversation_length)
            batches += [chunk[at : at + size] for at in range(0, len(chunk), size)]
        shuffled = torch.randperm(len(batches), generator=generator).tolist()
        return [batches[index] for index in shuffled]


def learning_rate(settings: Optimisation, step: int, num_tokens: int) -> float:
    """Return the learning rate of a step: warm-up, plateau, linear decay (see `Optimisation`)."""
    warmup = min(1.0, (step + 1) / (settings.warmup_steps + 1))
    left = 1.0 - num_tokens / settings.num_tokens
    decay = min(1.0, left / settings.decay_fraction) if settings.decay_fraction else 1.0
    fraction = settings.final_fraction + (1.0 - settings.final_fraction) * max(0.0, decay)
    return settings.learning_rate * warmup * fraction


def read_curve(folder: Path) -> tuple[CurvePoint, ...]:
    """Return a run's curve, empty if none was written; raises `TrainingError` if the file is damaged."""
    path = folder / CURVE_FILE
    if not path.is_file():
        return ()
    try:
        return _CURVE.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        msg = f"{path}: not a readable training curve ({error}); delete it to go on without what it held"
        raise TrainingError(msg) from error


def add_point(folder: Path, num_tokens: int, scores: Mapping[str, float]) -> None:
    """Write one point, and drop later points (from after the checkpoint); raises `TrainingError` if it cannot."""
    earlier = [point for point in read_curve(folder) if point.num_tokens < num_tokens]
    point = CurvePoint(num_tokens=num_tokens, scores={name: round(value, 4) for name, value in scores.items()})
    path = folder / CURVE_FILE
    with errors_as(TrainingError, f"{path}: cannot be written"):
        replace_file(path, _CURVE.dump_json((*earlier, point), indent=1))
