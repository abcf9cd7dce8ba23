"""Times parts of the models in their lane, by the code that also decodes, with random tokens."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, get_args
from weakref import WeakKeyDictionary

import numpy as np

from decoding.errors import LaneError
from decoding.messages import ExitSignal, Verdict, Window
from decoding.methods import METHODS
from decoding.schedule import MAX_TREE, MAX_WINDOW, Method, Schedule
from runtime.arrays import numpy_type
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.window_drafter import WindowDrafter
from runtime.models.config import ModelConfig
from runtime.target.target_model import RowsUnderWay, TargetModel
from runtime.wire import codec
from runtime.wire.channel import Channel, to_block
from runtime.wire.measurement import Measurement, Part
from runtime.wire.operations import operation

if TYPE_CHECKING:
    from runtime.parallel.local_group import GroupChannel

_OF_DRAFTS: Final = frozenset({"draft_step", "draft_start", "draft_streams", "head_step", "draft_prefill"})
_OF_PROMPTS: Final = frozenset({"prefill", "draft_prefill"})


class Prepared(NamedTuple):
    """A function to time, and one to call before each of its runs, outside of the time."""

    run: Callable[[], object]
    before: Callable[[], object] = lambda: None


class MeasureRole:
    """Operations that time the models of a lane."""

    def __init__(self, channel: "Channel | GroupChannel") -> None:
        self._channel = channel
        self.target: TargetModel | None = None
        self.drafter: WindowDrafter | None = None
        self._aside: tuple[TargetModel, Measurement, Prepared] | None = None
        self._timed_before = WeakKeyDictionary[TargetModel | WindowDrafter, set[Measurement]]()

    @operation
    def measure(self, measurement: Measurement) -> list[float]:
        """Time a part `repeats` times; the reply has the seconds of each run."""
        seconds = self._seconds(measurement)
        return [next(seconds) for _ in range(measurement.repeats)]

    @operation
    def keep_busy(self, measurement: Measurement) -> list[float]:
        """Time a part again and again until another message arrives; the reply has the seconds of each run."""
        seconds = self._seconds(measurement)
        found = [next(seconds)]
        while not self._channel.has_message():
            found.append(next(seconds))
        return found

    def _seconds(self, measurement: Measurement) -> Iterator[float]:
        """Yield the seconds of run after run, waiting for asynchronous devices before and after each."""
        model = self._model_of(measurement.part)
        prepared = self._kept(model, measurement) if measurement.is_aside else self._prepared(model, measurement)
        for _ in range(self._num_warm_ups(model, measurement)):
            prepared.before()
            prepared.run()
        while True:
            prepared.before()
            self._wait()
            if measurement.pause_s:
                time.sleep(measurement.pause_s)
            start_s = time.perf_counter()
            prepared.run()
            self._wait()
            yield time.perf_counter() - start_s

    def _wait(self) -> None:
        for model in (self.target, self.drafter):
            if isinstance(model, TargetModel | Drafter):
                model.backend.wait()

    def _model_of(self, part: Part) -> TargetModel | WindowDrafter:
        if part not in get_args(Part):
            raise LaneError(f"part {part!r} is unknown; known: {', '.join(get_args(Part))}")
        model = self.drafter if part in _OF_DRAFTS else self.target
        if model is None:
            what = "draft" if part in _OF_DRAFTS else "target"
            raise LaneError(f"{part} cannot be timed: this lane has loaded no {what}")
        return model

    def _num_warm_ups(self, model: TargetModel | WindowDrafter, measurement: Measurement) -> int:
        """Return the number of warm-up runs: at least one if the model runs this part at this size for the first time.

        Prompts of all lengths count as one size.
        """
        known, size = self._timed_before.setdefault(model, set()), _size(measurement)
        if measurement.part in _OF_PROMPTS:
            size = replace(size, rows=1)
        least = 0 if size in known else 1
        known.add(size)
        return max(least, measurement.warm_up)

    def _kept(self, model: TargetModel | WindowDrafter, measurement: Measurement) -> Prepared:
        if not isinstance(model, TargetModel):
            raise LaneError(f"{measurement.part} cannot be timed aside: that would end the sequence under way")
        kept = self._aside
        if kept is None or kept[0] is not model or kept[1] != _size(measurement):
            self._aside = kept = model, _size(measurement), self._prepared(model, measurement)
        return kept[2]

    def _prepared(self, model: TargetModel | WindowDrafter, measurement: Measurement) -> Prepared:
        if isinstance(model, TargetModel):
            return TargetParts(model, measurement).prepare()
        if measurement.part == "draft_prefill":
            return self._draft_prefill(model, measurement.rows)
        if measurement.part not in model.timed_parts:
            parts = ", ".join(model.timed_parts)
            raise LaneError(
                f"{measurement.part} cannot be timed: the drafter of this lane is a head, its part is {parts}"
            )
        return Prepared(model.timed_step(measurement))

    def _draft_prefill(self, drafter: WindowDrafter, rows: int) -> Prepared:
        if self.target is None:
            raise LaneError("draft_prefill cannot be timed: this lane has loaded no target")
        config = self.target.config
        prompt = _random_ids(config, rows + 1)
        features_TE = None
        if drafter.feature_layers:
            shape = rows, len(drafter.feature_layers) * config.hidden_size
            states = np.random.default_rng(0).standard_normal(shape, np.float32)
            features_TE = drafter.array(to_block(states.astype(numpy_type(self.target.backend.dtype))))
        schedule = _least_schedule(drafter.methods[0])

        def run() -> None:
            drafter.prefill(prompt, schedule=schedule, capacity=rows + 2, features_TE=features_TE)

        return Prepared(run)


def _size(measurement: Measurement) -> Measurement:
    return replace(measurement, repeats=1, warm_up=0)


def _random_ids(config: ModelConfig, count: int) -> list[int]:
    ids: list[int] = np.random.default_rng(0).integers(config.vocab_size, size=count).tolist()
    return ids


def _least_schedule(method: Method) -> Schedule:
    traits = METHODS[method]
    return Schedule(
        method=method,
        target_lane="target",
        draft_lane="draft",
        num_speculative_tokens=1,
        tree_size=int(traits.is_tree),
        tree_top_k=int(traits.has_dynamic_trees),
        drafter="draft",
    )


class TargetParts:
    """Prepares runs of a target's part at one size."""

    def __init__(self, model: TargetModel, measurement: Measurement) -> None:
        self._model, self._measurement = model, measurement
        self._window = Window(tuple(_random_ids(model.config, measurement.rows - 1)))
        capacity = measurement.context + measurement.rows
        if measurement.is_aside:
            # without `prepare`, which would replace the preparation for the current sequence
            self._model = model = model.scratch_sequence(capacity)
        else:
            model.prepare(
                num_prompt=measurement.rows if measurement.part == "prefill" else 0,
                num_slots=capacity,
                rows=(measurement.rows,) if measurement.part != "prefill" else (),
                least_slots=measurement.context,
            )
            model.prefill([0], capacity=capacity)
        model.cache.fill_random(measurement.context)

    def prepare(self) -> Prepared:
        """Return the run to time."""
        model = self._model
        parts: dict[Part, Callable[[], Prepared]] = {
            "verify": lambda: self._operation(lambda: codec.write(model.verify(self._window))),
            "verify_tree": lambda: self._tree(model.verify),
            "stream": self._stream,
            "lm_head": lambda: self._after_layers(model.decide),
            "exit": self._exit,
            "prefill": self._prefill,
        }
        return parts[self._measurement.part]()

    def _prefill(self) -> Prepared:
        model, rows = self._model, self._measurement.rows
        prompt = _random_ids(model.config, rows + 1)
        return Prepared(lambda: model.prefill(prompt, capacity=rows + 2))

    def _stream(self) -> Prepared:
        self._model.set_tree(size=MAX_TREE, depth=MAX_WINDOW)
        return self._tree(self._model.stream)

    def _tree(self, verify: Callable[[Window], Verdict]) -> Prepared:
        model, first = self._model, self._measurement.context + 1
        # every node has two children; the path to the last node is accepted
        parents = tuple(node // 2 - 1 for node in range(len(self._window.tokens)))
        window = self._window._replace(parents=parents)
        path: list[int] = []
        node = len(parents) - 1
        while node >= 0:
            path.insert(0, first + node)
            node = parents[node]

        def run() -> None:
            codec.write(verify(window))
            model.cache.gather(path, first)

        return self._operation(run)

    def _exit(self) -> Prepared:
        model, layer, count = self._model, self._measurement.exit_layer, self._measurement.num_candidates
        if layer is None:
            raise LaneError("exit cannot be timed without an exit_layer")
        model.early_exit.open(layer)
        return self._after_layers(lambda rows: ExitSignal(*model.early_exit.read(rows.x_BTD, layer, count)))

    def _after_layers(self, tail: Callable[[RowsUnderWay], Verdict | ExitSignal]) -> Prepared:
        """Time the end of an operation right after all layers, which have evicted its weights from the CPU's cache."""
        model, waiting = self._model, list[RowsUnderWay]()

        def before() -> None:
            model.cache.set_length(self._measurement.context)
            waiting[:] = [model.advance(model.embed(self._window), model.num_layers)]

        return Prepared(lambda: codec.write(tail(waiting[0])), before)

    def _operation(self, run: Callable[[], object]) -> Prepared:
        return Prepared(run, lambda: self._model.cache.set_length(self._measurement.context))
