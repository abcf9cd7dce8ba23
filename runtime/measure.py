"""Timing parts of the models inside their lane, by the very code that decodes, on made-up text.

Keys and values are random and touched, for memory that was never written is read from one page of zeros.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, get_args

import torch

from decoding.errors import LaneError
from decoding.messages import ExitSignal, Window
from decoding.schedule import Schedule
from runtime.drafter import Drafter
from runtime.kv_cache import KVCache
from runtime.lane_roles import NOTHING, Operation
from runtime.masks import TreeMask
from runtime.measurement import Measurement, Part
from runtime.target import RowsUnderWay, TargetModel
from runtime.wire import Channel, Message
from runtime.wire_format import write_signal, write_verdict


class MeasureRole:
    """Operations that time the models a lane has loaded."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.target: TargetModel | None = None
        self.drafter: Drafter | None = None

    @property
    def operations(self) -> dict[str, Operation]:
        """By the name a message calls them; `stop` ends a background measurement by merely being there."""
        return {"measure": self.measure, "keep_busy": self.keep_busy, "stop": lambda _: NOTHING}

    def measure(self, message: Message) -> Message:
        """Time a part some number of times; replies ``seconds``."""
        measurement = Measurement(**message.fields["measurement"])
        seconds = _timed(self._prepare(measurement), measurement)
        return Message({"seconds": [next(seconds) for _ in range(measurement.repeats)]})

    def keep_busy(self, message: Message) -> Message:
        """Time a part again and again until another message comes; replies ``seconds``."""
        measurement = Measurement(**message.fields["measurement"])
        seconds = _timed(self._prepare(measurement), measurement)
        found = []
        while not self._channel.has_message():
            found.append(next(seconds))
        return Message({"seconds": found})

    def _prepare(self, measurement: Measurement) -> Prepared:
        if measurement.part == "draft_step":
            if self.drafter is None:
                raise LaneError("draft_step cannot be timed: this lane has loaded no draft")
            return _draft_step(self.drafter, measurement)
        if measurement.part not in get_args(Part):
            raise LaneError(f"part {measurement.part!r} is unknown; known: {', '.join(get_args(Part))}")
        if self.target is None:
            raise LaneError(f"{measurement.part} cannot be timed: this lane has loaded no target")
        return TargetParts(self.target, measurement).prepare()


class Prepared(NamedTuple):
    """A run to be timed, and how many of the part it is."""

    run: Callable[[], object]
    num_parts: int = 1


def _timed(prepared: Prepared, measurement: Measurement) -> Iterator[float]:
    """Seconds of one part, run after run."""
    for _ in range(measurement.warm_up):
        prepared.run()
    while True:
        start_s = time.perf_counter()
        prepared.run()
        yield (time.perf_counter() - start_s) / prepared.num_parts


class TargetParts:
    """The target's parts at one size; each private method prepares the part of its name."""

    def __init__(self, model: TargetModel, measurement: Measurement) -> None:
        self._model = model
        self._measurement = measurement
        self._window = Window(tuple(torch.randint(model.decoder.config.vocab_size, (measurement.rows - 1,)).tolist()))
        model.prefill([0], capacity=measurement.context + measurement.rows)
        _fill(model.cache, measurement.context)

    def prepare(self) -> Prepared:
        """The run to be timed."""
        parts: dict[Part, Callable[[], Prepared]] = {
            "embed": self._embed,
            "layer": self._layer,
            "head": self._head,
            "exit": self._exit,
            "verify": self._verify,
            "prefix": self._prefix,
            "suffix": self._suffix,
        }
        return parts[self._measurement.part]()

    def _embed(self) -> Prepared:
        return Prepared(lambda: self._model.enter(self._window))

    def _layer(self) -> Prepared:
        first = self._measurement.first_layer
        last = self._measurement.last_layer or self._model.num_layers
        rows = self._model.enter(self._window)._replace(layers_done=first)
        return Prepared(lambda: self._model.advance(rows, last), last - first)

    def _head(self) -> Prepared:
        rows = self._passed(self._model.num_layers)
        return self._operation(lambda: write_verdict(self._model.leave(rows)))

    def _exit(self) -> Prepared:
        model, layer, rows = self._model, self._exit_layer, self._passed(self._exit_layer)
        count = self._measurement.num_candidates
        return Prepared(lambda: write_signal(ExitSignal(*model.early_exit.read(rows.x_BTD, layer, count))))

    def _verify(self) -> Prepared:
        return self._operation(lambda: write_verdict(self._model.verify(self._window)))

    def _prefix(self) -> Prepared:
        layer, count = self._exit_layer, self._measurement.num_candidates
        return self._operation(lambda: write_signal(self._model.prefix(self._window, layer, count)))

    def _suffix(self) -> Prepared:
        model, rows = self._model, self._passed(self._exit_layer)
        return self._operation(lambda: write_verdict(model.leave(model.advance(rows, model.num_layers))))

    @property
    def _exit_layer(self) -> int:
        if self._measurement.exit_layer is None:
            raise LaneError(f"{self._measurement.part} cannot be timed without an exit_layer")
        return self._measurement.exit_layer

    def _passed(self, layer: int) -> RowsUnderWay:
        return self._model.advance(self._model.enter(self._window), layer)

    def _operation(self, operation: Callable[[], object]) -> Prepared:
        """One on the same text every time, though its verdict moves the cache."""

        def run() -> None:
            self._model.cache.roll_back(self._measurement.context)
            operation()

        return Prepared(run)


def _draft_step(drafter: Drafter, measurement: Measurement) -> Prepared:
    context, num_rows = measurement.context, measurement.rows
    num_proposals = measurement.num_proposals or num_rows
    config = drafter.model.decoder.config
    drafter.prefill([0], schedule=_schedule(measurement.num_alternatives), capacity=context + num_rows)
    _fill(drafter.cache, context)
    ids = torch.randint(config.vocab_size, (num_rows,)).tolist()
    positions = [context] * num_rows
    tree = TreeMask(num_committed=context, num_window=0, num_branches=num_rows, num_tokens=1, dtype=drafter.dtype)
    tree.add([0] * num_rows)
    features_TE = None
    if measurement.with_features:
        if drafter.model.fuse is None:
            raise LaneError("draft_step cannot be timed with_features: this draft takes none")
        features_TE = torch.randn(num_rows, drafter.model.fuse.in_features, dtype=drafter.dtype)

    def run() -> None:
        drafter.cache.roll_back(context)
        mask = tree.step(list(range(num_rows)), context) if num_rows > 1 else None
        hidden_TD = drafter.forward(ids, positions=torch.tensor(positions), mask=mask, features_TE=features_TE)
        drafter.propose(hidden_TD[num_rows - num_proposals :], positions[:num_proposals])

    return Prepared(run)


def _schedule(num_alternatives: int) -> Schedule:
    """The least that makes a draft keep so many alternatives."""
    schedule = Schedule(method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=1)
    if num_alternatives < 2:
        return schedule
    roots = {"method": "mirror", "root_source": "draft", "draft_top_k": num_alternatives - 1}
    return Schedule.model_validate(schedule.model_dump() | roots)


@torch.inference_mode()
def _fill(cache: KVCache, context: int) -> None:
    cache.keys.normal_()
    cache.values.normal_()
    cache.roll_back(context)
