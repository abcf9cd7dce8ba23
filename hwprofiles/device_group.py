"""Devices that compute every operation together, a share each: what they exchange over the links between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from decoding.yaml_file import StrictModel
from hwprofiles.bounds import Bytes, BytesPerSecond, Seconds

Count = Annotated[int, Field(ge=0, le=100_000)]


class DeviceGroup(StrictModel):
    """What makes several devices one lane.

    The tables of the lane are times of one member's share; the collectives come on top of them. A tensor-parallel model
    has two all-reduces a layer (Megatron, 1909.08053): `{layer: 2}` of a target, and twice its layers of a whole
    `draft_step` or `prefill`; one of parallel tracks has one for every segment of its layers.

    Attributes:
        num_devices: members.
        latency_s, bytes_per_s: of the links between them, per direction.
        reduced_bytes_per_row: what an all-reduce sums up for every row: its hidden state.
        gathered_bytes_per_row: what an all-gather brings together for every row: the candidates of all members.
        all_reduces, all_gathers: in one call of a part, by its kind (`sim.cost.cost_model.PartKind`).
        algorithm: of the all-reduces; None for whichever is faster. All-gathers go by a tree.
        source: where the numbers come from.
    """

    num_devices: Annotated[int, Field(ge=1, le=100_000)]
    latency_s: Seconds
    bytes_per_s: BytesPerSecond
    reduced_bytes_per_row: Bytes = 0.0
    gathered_bytes_per_row: Bytes = 0.0
    all_reduces: Mapping[str, Count] = Field(default={})
    all_gathers: Mapping[str, Count] = Field(default={})
    algorithm: Literal["ring", "tree"] | None = None
    source: str
