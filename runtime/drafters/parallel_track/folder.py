"""A draft of parallel tracks on disk: a `config.json` with its sizes and a seed; its weights are random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

import torch
from pydantic import Field

from decoding.errors import ModelError, ModelFormatError
from runtime.backends.backend import Backend
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.language_model.folder import as_draft
from runtime.drafters.parallel_track.model import NUM_SEGMENTS, ParallelTracks, TrackConfig, randomise
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Rotary
from runtime.parallel.group import Group
from runtime.storage.weight_folder import CONFIG_FILE, Count, Strict, Width, read_config

PARALLEL_TRACK_KIND: Final = "mirrorsd_parallel_track"


class ParallelTrackConfig(Strict):
    """`config.json` of a draft of parallel tracks: sizes of one track; vocabulary, positions and norms: the target's.

    Tracks are dealt out evenly to the ranks of a lane, and each has two segments of layers. There are no trained
    weights.
    """

    speculators_model_type: Literal["mirrorsd_parallel_track"] = PARALLEL_TRACK_KIND
    num_tracks: Count
    layers_per_segment: Count
    hidden_size: Width
    intermediate_size: Width
    num_heads: Width
    num_kv_heads: Width
    head_dim: Width
    weights: Literal["random"]
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0

    def sizes(self, target: ModelConfig) -> TrackConfig:
        """Return the sizes of a draft for this target."""
        track = replace(
            target,
            num_layers=NUM_SEGMENTS * self.layers_per_segment,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            tie_embeddings=False,
        )
        return TrackConfig(track=track, num_tracks=self.num_tracks)


class TrackDrafter(Drafter):
    """A draft model of parallel tracks; torch computes it on every lane, since no other back end knows of tracks."""

    def run_on(self, new_backend: Callable[[Decoder], Backend]) -> bool:  # noqa: ARG002
        """See `WindowDrafter`."""
        return False


def load_parallel_track(folder: Path, target_folder: Path, *, dtype: torch.dtype, group: Group | None) -> TrackDrafter:
    """Return the drafter with this rank's tracks; all ranks of the group run it together.

    Raises `ModelError` if the tracks cannot be dealt out evenly or the target is no Llama, `ModelFormatError` for the
    config.
    """
    config = read_config(folder, ParallelTrackConfig, "a draft of parallel tracks comes with one")
    target = ModelConfig.from_folder(target_folder)
    target.require_rotary(str(folder / CONFIG_FILE))
    try:
        sizes = config.sizes(target)
    except ModelError as error:
        raise ModelFormatError(f"{folder / CONFIG_FILE}: {error}") from error
    with torch.device("meta"):
        tracks = ParallelTracks(sizes, group or Group.alone())
    randomise(tracks, config.seed, dtype=dtype)
    tracks.rotary = Rotary(sizes.track, target.max_position)
    return TrackDrafter(as_draft(tracks.eval().to(tracks.group.device), target.vocab_size))
