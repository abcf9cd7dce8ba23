"""The cost of a model part on a device that nobody timed: a roofline of its bytes and FLOPs, and dispatch.

    seconds = max(bytes / (bandwidth * efficiency) * growth, FLOPs / (peak * efficiency), kernels * dispatch)

The KV cache is read at a share of that bandwidth. Growth: kernels for a few rows read a little more slowly than those
for one. If kernels do not queue, dispatch is added instead of taking the maximum; a compiled graph is dispatched once.
With a kernel law (`benchmarks/kernel_laws.py`) all three are added; of computing, what reading does not hide.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import hypot, inf
from typing import Any, Final, NamedTuple

import numpy as np

from costs.cost_model import Floats, Own, Part, PartFacts, Shared
from decoding.errors import OutOfRangeError, ProfileError
from hwprofiles.bounds import LONGEST_S
from hwprofiles.lane_profile import TARGET_PARTS, LanePart
from hwprofiles.model_shape import ModelShape
from hwprofiles.models.head_shapes import IN_ONE_PASS, LOOKUP
from hwprofiles.weights.formats import WeightFormat
from sim.derived.device_speed import KERNELS_OF_HEAD, KERNELS_PER_LAYER, DeviceSpeed
from sim.without_caches import WithoutCaches

ROOFLINE_ERROR: Final = 0.1
"""Relative error of a roofline with correct inputs: published planners err by 4 to 11 % on whole models (LLMCompass
4.1, GenZ 5.8, Vidur below 9, APEX+ 10.7)."""
DRAFT_PARTS: Final[tuple[LanePart, ...]] = ("draft_step", "draft_streams", "draft_prefill")
_HEAD_PARTS: Final = ("heads", "head_prefill")
"""Parts of a drafter that drafts a whole window in one pass."""
STREAM_LAYERS: Final = 4
"""Number of last layers of a draft that stream heads use (Speculative Streaming, arXiv 2402.11131, section 3)."""
_WITH_HEAD: Final = ("lm_head", "exit", "draft_step", "draft_streams", "draft_reads", "heads")
_WITHOUT_LAYERS: Final = ("medusa", "hydra")
_PROMPTS: Final = ("prefill", "draft_prefill", "head_prefill")
_END_OF_PASS: Final = ("lm_head", "exit", "draft_step", "heads", *_PROMPTS)
_TYPICAL_ROWS: Final = 4
TYPICAL_CONTEXT: Final = 512
"""Context (cached tokens) of the contention of groups, and of errors of parts where none is given."""
_MOST_WORKS: Final = 512
"""Cache size of `StoredModel.shared_work` and `own_work`, in calls."""


class SharedWork(NamedTuple):
    """Bytes, FLOPs (`layer_flops`: those in layers) and kernels of a call without its KV cache, over all devices."""

    num_bytes: float
    flops: float
    num_kernels: int
    layer_flops: float = 0.0


class Contexts(NamedTuple):
    """An array of context lengths as a hashable key of a cache."""

    content: bytes
    shape: tuple[int, ...]

    @classmethod
    def of(cls, contexts: Floats) -> "Contexts":
        """Return the key of an array."""
        return cls(contexts.tobytes(), contexts.shape)


@dataclass(frozen=True, kw_only=True)
class StoredModel(WithoutCaches):
    """A model's shape, and the formats of its weights and KV cache.

    `cache_scale_bits`: bits of scales per element of the cache. `head`: the kind of draft head (`HEADS`); None for a
    separate model.
    """

    shape: ModelShape
    weights: WeightFormat
    cache_bits: int = 16
    cache_scale_bits: float = 0.0
    head: str | None = None

    def __str__(self) -> str:
        if self.head == LOOKUP:
            return "prompt lookup"
        cache = "" if self.cache_bits == 16 else f" with {self.cache_bits}-bit keys and values"
        return f"{self.shape.name} in {self.weights}{cache}"

    def kv_bytes(self, num_tokens: float, num_devices: int = 1) -> float:
        """Return the cache bytes of a sequence on each of `num_devices`."""
        return self.shape.kv_bytes(num_tokens, self.cache_bits + self.cache_scale_bits, num_devices)

    @property
    def reads_verified_rows(self) -> bool:
        """Whether engines of `hwprofiles.engines.READS_AGAIN` run it over every verified row once more.

        They do for draft models and MTP layers, which have a KV cache; Gemma 4's assistants read the target's.
        """
        return self.head is None or self.is_in_target

    @property
    def is_in_target(self) -> bool:
        """Whether its weights are in the target's files: true for MTP layers, except Gemma 4's assistants."""
        return self.head == "mtp" and self.shape.borrows_lm_head

    @property
    def head_bytes(self) -> float:
        """Bytes of the `lm_head` that a pass reads."""
        return self.shape.head_bytes(self.weights)

    @cached_property
    def shared_work(self) -> Callable[[LanePart, float], SharedWork]:
        """Cached function of (part, rows): the work on weights and activations, without the KV cache."""
        return lru_cache(_MOST_WORKS)(self._shared_work_of)

    def _shared_work_of(self, kind: LanePart, rows: float) -> SharedWork:
        names_tokens = kind in _WITH_HEAD and not (kind == "draft_reads" and self.head is not None)
        num_layers, num_heads = self._num_layers(kind), int(names_tokens)
        layer_flops = num_layers * self.shape.matrix_flops(rows)
        flops = layer_flops + num_heads * self.shape.head_flops(rows)
        if self._moves_nothing(kind):
            return SharedWork(0.0, flops, 0, layer_flops)
        layer_bytes = self.shape.layer_weight_bytes(self.weights, rows) + self.shape.layer_activation_bytes(rows)
        num_bytes = num_layers * layer_bytes + num_heads * self.head_bytes
        if self.head in _WITHOUT_LAYERS:  # each "layer" is one matrix with an `lm_head`
            return SharedWork(num_bytes, flops, num_layers * (1 + KERNELS_OF_HEAD), layer_flops)
        num_kernels = num_layers * KERNELS_PER_LAYER + num_heads * KERNELS_OF_HEAD
        return SharedWork(num_bytes, flops, num_kernels, layer_flops)

    @cached_property
    def own_work(self) -> Callable[[LanePart, float, Contexts, int], tuple[Floats, Floats]]:
        """Cached function of (part, rows, contexts, devices): a sequence's cache bytes and attention FLOPs per device.

        Bytes are the keys, values and states that are read, and those of the new tokens that are written.
        """
        return lru_cache(_MOST_WORKS)(self._own_work_of)

    def _own_work_of(self, kind: LanePart, rows: float, cached: Contexts, num_devices: int) -> tuple[Floats, Floats]:
        contexts, num_layers = np.frombuffer(cached.content).reshape(cached.shape), self._num_layers(kind)
        is_prompt = kind in _PROMPTS
        flops = num_layers * self.shape.mixing_flops(rows, contexts, is_prompt=is_prompt) / num_devices
        if self._moves_nothing(kind):
            return np.zeros_like(flops), flops
        bits = self.cache_bits + self.cache_scale_bits
        kv_bytes = self.shape.layer_kv_bytes(rows, contexts, bits, num_devices, is_prompt=is_prompt)
        return num_layers * kv_bytes, flops

    def _num_layers(self, kind: LanePart) -> int:
        depth = self.shape.num_layers
        return {"layer": 1, "lm_head": 0, "exit": 0, "draft_streams": min(STREAM_LAYERS, depth)}.get(kind, depth)

    def _moves_nothing(self, kind: LanePart) -> bool:
        """Whether a part adds no traffic and no kernels: rows that join another pass (streams), or prompt lookup."""
        return kind == "draft_streams" or self.head == LOOKUP


@dataclass(frozen=True, kw_only=True, slots=True)
class RooflineCost:
    """A `costs.cost_model.LaneCost` by roofline, of a device or of one member's equal share in a group.

    `costs.cost_model.GroupCost` adds the communication of a group.

    Attributes:
        device: speed of the device, or of each member.
        target, draft: the models that the lane can run; None for a model that does not fit.
        exits: layers after which the target has an early exit, which costs its final norm and `lm_head`.
        num_devices: number of members.
        context: cached tokens at which the errors of parts hold.
    """

    device: DeviceSpeed
    target: StoredModel | None = None
    draft: StoredModel | None = None
    exits: tuple[int, ...] = ()
    num_devices: int = 1
    context: float = TYPICAL_CONTEXT

    def at_peak(self, bytes_per_s: float) -> "RooflineCost":
        """Return the costs if only reading took time, at `bytes_per_s`: a lower bound for any kernels."""
        free: dict[str, Any] = dict.fromkeys(("growth_per_row", "kernel_s", "graph_s", "engine_step_s"), 0.0)
        free |= {"flops": inf, "unhidden_share": None, "prices": None}
        device = replace(self.device, bytes_per_s=bytes_per_s, cache_efficiency=1.0, **free)
        return replace(self, device=device)

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        """See `LaneCost`."""
        if reason := self._out_of_range(part, rows, contexts):
            raise OutOfRangeError(reason)
        seconds = self._times_s(part, rows, contexts)
        if seconds.max() > LONGEST_S and (reason := self.missing(part, rows, contexts)):
            raise OutOfRangeError(reason)
        return seconds

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        """See `LaneCost`."""
        if reason := self._out_of_range(part, rows, contexts):
            return reason
        slowest_s = self.one(part, rows, float(contexts.max()))
        if slowest_s > LONGEST_S:
            told = f"{part} takes {slowest_s / 3600:.3g} hours for {rows:g} row{'s' if rows > 1 else ''}"
            return f"lane {self.device.name!r}: {told}; look through its numbers"
        return None

    def _out_of_range(self, part: Part, rows: float, contexts: Floats) -> str | None:
        model = self._model(part)
        if model is None or (part.kind == "exit" and part.exit_layer not in self.exits):
            return f"lane {self.device.name!r} has no {part}"
        try:
            self._padded(part, rows)
        except OutOfRangeError as error:
            return f"{part}: {error}"
        longest = float(contexts.max()) + (rows if part.kind in _PROMPTS else 1)  # rows may be of several sequences
        if longest > model.shape.max_position:
            return f"{part}: {longest:.0f} positions, {model.shape.name} has {model.shape.max_position}"
        return None

    def facts(self, part: Part) -> PartFacts:
        """See `LaneCost`."""
        model = self._model(part)
        if model is None:
            msg = f"lane {self.device.name!r} has no {part}"
            raise ProfileError(msg)
        source, most = f"roofline of {model} on {self.device.name}", model.shape.max_position
        return PartFacts(self._relative_error(part), source, most)

    def one(self, part: Part, rows: float, context: float) -> float:
        """Return the seconds of one call at one context, which must be in range."""
        return float(self._times_s(part, rows, np.array(context)))

    def _times_s(self, part: Part, rows: float, contexts: Floats) -> Floats:
        return self.shared(part, rows).with_one(self.own(part, rows, contexts))

    def shared(self, part: Part, rows: float) -> Shared:
        """See `LaneCost`."""
        num_passes, rows_at_once = self._passes(part, rows)
        num_bytes, flops, _ = self._work(part, rows_at_once)
        reading_s, computing_s = self._of_law(self.device.weights_s(num_bytes, rows_at_once), flops / self.device.flops)
        graphs_s = (num_passes - 1) * self.device.graph_s + self._step_s(part)
        starts_s = num_passes * self._dispatch_s(part, rows_at_once)
        ahead_s, added_s = (graphs_s + starts_s, graphs_s) if self.device.starts_ahead else (0.0, graphs_s + starts_s)
        return Shared(
            num_passes * num_bytes, num_passes * reading_s + added_s, num_passes * computing_s + added_s, ahead_s
        )

    def own(self, part: Part, rows: float, contexts: Floats) -> Own:
        """See `LaneCost`."""
        num_passes, rows_at_once = self._passes(part, rows)
        num_bytes, flops = self._own_work(part, rows, contexts)
        states, cached = self._states(part, rows, contexts), np.minimum(contexts, TYPICAL_CONTEXT)
        grown = self._own_work(part, rows, cached)[0] if self.device.reads_cache_once else num_bytes
        cache_s = self.device.cache_s(num_bytes - states, rows_at_once, grown - states)
        own_s = self.device.weights_s(states, rows_at_once) + cache_s
        reading_s, computing_s = self._of_law(own_s, flops / self.device.flops)
        return Own(num_passes * num_bytes, num_passes * reading_s, num_passes * computing_s)

    def _states(self, part: Part, rows: float, contexts: Floats) -> Any:
        """Return the bytes of a sequence's states, which are read like weights; of a prompt all counts as cache."""
        return 0.0 if part.kind in _PROMPTS else self._own_work(part, rows, np.zeros_like(contexts))[0]

    def _own_work(self, part: Part, rows: float, contexts: Floats) -> tuple[Floats, Floats]:
        """Return a member's cache bytes and attention FLOPs in each pass of a call, for its one sequence.

        Padding rows of a graph count in prefills only, where a graph is as long as its cache.
        """
        cached, (num_passes, rows_at_once) = Contexts.of(self.device.padded_context(contexts)), self._passes(part, rows)
        own_rows = rows_at_once if part.kind in _PROMPTS else rows / num_passes
        return self._known_model(part).own_work(part.kind, own_rows, cached, self.num_devices)

    def _of_law(self, reading_s: Any, computing_s: Any) -> tuple[Any, Any]:
        """Return (reading plus the share of computing that a kernel law does not hide, computing)."""
        return reading_s + (self.device.unhidden_share or 0.0) * computing_s, computing_s

    def _step_s(self, part: Part) -> float:
        """Return the engine's time per pass if `part` is the last one of a pass for which it counts; else 0."""
        is_draft = part.kind not in TARGET_PARTS
        if part.kind not in _END_OF_PASS or self._known_model(part).head == LOOKUP:
            return 0.0
        return self.device.engine_step_s if is_draft or self.device.steps_target else 0.0

    def _dispatch_s(self, part: Part, rows: float) -> float:
        num_kernels = self._work(part, rows)[2]
        return num_kernels * self.device.kernel_s * (self.device.growth(rows) if self.device.prices else 1.0)

    def _passes(self, part: Part, rows: float) -> tuple[float, float]:
        """Return the number of passes in which a call computes its rows, and the rows per pass."""
        rows = self._padded(part, rows)
        num_passes = rows if self.device.feeds_single_rows and part.kind not in _PROMPTS else 1
        return num_passes, rows / num_passes

    def _work(self, part: Part, rows: float) -> tuple[float, float, float]:
        """Return a member's (bytes, FLOPs, kernels) of a call without KV cache; FLOPs in fewer bits count less."""
        model = self._known_model(part)
        num_bytes, flops, num_kernels, layer_flops = model.shared_work(part.kind, rows)
        flops -= layer_flops * (1 - 1 / self.device.times_flops.get(model.weights, 1.0))
        starts = self.device.starts_of_mixtures.at(model.shape.linear_share) if model.shape.num_experts else 1.0
        return num_bytes / self.num_devices, flops / self.num_devices, num_kernels * starts

    def _known_model(self, part: Part) -> StoredModel:
        model = self._model(part)
        assert model is not None, "asked for what is missing"
        return model

    def _roofline_s(self, reading_s: Any, computing_s: Any, num_kernels: float) -> Any:
        """Return the seconds of a member's call from those of reading and computing, and its kernels."""
        dispatch_s, working_s = num_kernels * self.device.kernel_s, np.maximum(*self._of_law(reading_s, computing_s))
        return np.maximum(working_s, dispatch_s) if self.device.starts_ahead else working_s + dispatch_s

    def _relative_error(self, part: Part) -> float:
        """Return the error of a part's times beyond its lane's: of the roofline, of dispatch and of computing."""
        typical = min((_TYPICAL_ROWS, *self.device.row_buckets[-1:]))
        here = self.one(part, typical, self.context) + self.device.graph_s
        rows = self._padded(part, typical)
        shared_bytes, shared_flops, num_kernels = self._work(part, rows)
        context = np.array(float(self.context))
        own_bytes, own_flops = map(float, self._own_work(part, rows, context))
        states = float(self._states(part, rows, context))
        cache_s = self.device.cache_s(own_bytes - states, 1, 0.0)
        reading_s = self.device.weights_s(shared_bytes + states, 1) + cache_s
        computing_s = (shared_flops + own_flops) / self.device.flops

        def relative_change(*, dispatch: float = 0.0, computing: float = 0.0) -> float:
            """Return the relative change of the part's time if dispatch and computing take longer by these shares."""
            changed_s = self._roofline_s(reading_s, computing_s * (1 + computing), num_kernels * (1 + dispatch))
            added_s = float(changed_s - self._roofline_s(reading_s, computing_s, num_kernels))
            return abs(added_s + dispatch * self.device.graph_s) / here

        of_mixture = ("starts_of_mixtures",) if self._known_model(part).shape.num_experts else ()
        dispatch = relative_change(dispatch=self.device.error_of("dispatch_s", "kernel_start_s", *of_mixture))
        step = self._step_s(part) * self.device.error_of("engine_step_s") / here
        cache = cache_s * self.device.cache_error / here
        return hypot(ROOFLINE_ERROR, dispatch, step, cache, relative_change(computing=self.device.computing_error))

    def _padded(self, part: Part, rows: float) -> float:
        """Return the number of rows with padding: to a bucket, in prefills to a multiple of the context step."""
        device = self.device
        if part.kind not in _PROMPTS:
            return device.padded_rows(rows)
        if device.max_prompt is not None and rows > device.max_prompt:
            msg = f"{device.name} reads prompts of at most {device.max_prompt} tokens, not of {rows:g}"
            raise OutOfRangeError(msg)
        return float(device.padded_context(np.array(rows)))

    def _model(self, part: Part) -> StoredModel | None:
        if part.kind in TARGET_PARTS:
            return self.target
        if part.kind == "draft_reads":
            is_read = self.device.reads_again and self.draft is not None and self.draft.reads_verified_rows
            return self.draft if is_read else None
        is_at_once = self.draft is not None and self.draft.head in IN_ONE_PASS
        return self.draft if part.kind in (_HEAD_PARTS if is_at_once else DRAFT_PARTS) else None
