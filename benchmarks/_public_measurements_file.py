"""Public measurements as `public-measurements.yaml` holds them: four kinds, each with the assumptions it needs."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from decoding.validation import Many, Pair
from decoding.yaml_file import StrictModel
from hwprofiles.weights.formats import WeightFormat


class PublicMeasurement(StrictModel):
    """A number that somebody published.

    Attributes:
        case, source, note: what it is, whose it is, and what has to be said of it.
        tolerance: relative; of a share in shares.
    """

    case: str
    source: str
    measured: float
    tolerance: float
    note: str = ""


class MeasuredSpeed(PublicMeasurement):
    """A speed, or a ratio of two, of a draft and a target in turn: tokens/s, or times plain decoding.

    Attributes:
        platform: a shipped one, or its data.
        set: changes of it, as in `with_overrides`.
        target, draft, weights, draft_weights: the models.
        target_on, draft_on: lanes; without the latter plain decoding is meant, in tokens/s.
        window, share: drafted tokens, and the share of them that is accepted.
        adapts: whether the window grows and shrinks from there, see `public_measurements.window_shares`.
    """

    platform: str | dict[str, Any]
    set: dict[str, str | float] = Field(default={})
    target: str
    draft: str
    weights: WeightFormat
    draft_weights: WeightFormat | None = None
    target_on: str
    draft_on: str | None = None
    window: int = 0
    share: float = 0.0
    adapts: bool = False


class MeasuredHandover(PublicMeasurement):
    """A prompt that is read on one device and decoded on another: tokens/s with its reading over those without.

    Attributes:
        platform, target, weights: as in `MeasuredSpeed`.
        read_on, read_weights: what reads the prompt, and the weights that it reads it with.
        decode_on: what decodes.
        prompt, tokens: of a request.
    """

    platform: str | dict[str, Any]
    target: str
    weights: WeightFormat
    read_weights: WeightFormat
    read_on: str
    decode_on: str
    prompt: int
    tokens: int


class MeasuredContention(PublicMeasurement):
    """The share of its speed, negative, that a device loses: two on one memory, or two that take turns on one device.

    Attributes:
        pool_bytes_per_s: bandwidth of the memory by its data sheet.
        wanted_bytes_per_s: what either draws alone; None where they share the device.
        share_of_device: of the device's time that the other one takes.
    """

    pool_bytes_per_s: float
    wanted_bytes_per_s: Pair[float] | None = None
    share_of_device: float | None = None


class MeasuredOverlap(PublicMeasurement):
    """Drafting next to verifying (mirror, roots of the draft) of a pair that was measured in turn too.

    What was accepted is not published: it is taken to be what makes drafting in turn as fast as it was measured. Of one
    sequence `measured` is times drafting in turn, of several tokens/s of all over those of one.

    Attributes:
        platform, target, draft, weights, target_on, draft_on, window: as in `MeasuredSpeed`.
        top_k: roots for every drafted token.
        hits: how often the target's own token is assumed to be among them, where it refuses the drafted one.
        in_turn: measured times plain decoding, of one sequence.
        sequences: at once.
    """

    platform: str
    target: str
    draft: str
    weights: WeightFormat
    target_on: str
    draft_on: str
    window: int
    top_k: int
    hits: float
    in_turn: float
    sequences: int = 1


class EvidenceFile(StrictModel):
    """All of it."""

    speeds: Annotated[Many[MeasuredSpeed], Field(min_length=1)]
    handovers: Many[MeasuredHandover]
    overlaps: Many[MeasuredOverlap]
    contention: Many[MeasuredContention]
