"""A draft model of parallel tracks: narrow decoders side by side that synchronise twice in a step.

The layout is that of the Mirror-SD paper (arXiv 2510.13161): two segments of layers, with a synchronisation after each.
The paper does not say what is exchanged; here it is the mean of the tracks' hidden states. The result has the same bits
however tracks are divided over ranks; a single track is a plain `Decoder`.
Shapes: legend of `runtime.models.decoder`; D is the width of one track, P the number of tracks on this rank.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from decoding.errors import ModelError, ModelFormatError
from runtime.backends.backend import Backend
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.language_model.folder import as_draft
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Rotary, new_embedding
from runtime.models.hf_config import CONFIG_FILE
from runtime.parallel.group import Group
from runtime.storage.weight_folder import Count, Strict, Width, read_config

NUM_SEGMENTS = 2


class ParallelTracks(Decoder):
    """The tracks of one rank, and the final norm and `lm_head`, which every rank has.

    Layers, and so their KV cache, are in the order in which a rank runs them: by segment, then by track.
    """

    def __init__(self, track: ModelConfig, num_tracks: int, group: Group) -> None:
        """Args: `track` is one track of two segments. Raises `ModelError` for unequal numbers of tracks on ranks."""
        self.num_tracks, rest = divmod(num_tracks, group.world_size)
        if rest:
            raise ModelError(f"num_tracks {num_tracks} cannot be dealt out evenly to {group.world_size} ranks")
        super().__init__(replace(track, num_layers=track.num_layers * self.num_tracks))
        self.track, self.group, self.num_everywhere = track, group, num_tracks
        self.depth = track.num_layers // NUM_SEGMENTS
        self.embedding = new_embedding(track.vocab_size, track.hidden_size * self.num_tracks)

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        """For every layer: its track, and its index in that track."""
        first = self.group.rank * self.num_tracks
        for segment in range(NUM_SEGMENTS):
            for track in range(first, first + self.num_tracks):
                yield from ((track, segment * self.depth + layer) for layer in range(self.depth))

    def _through(self, x_BTD: Tensor, layers: Iterable[int], *seen: object) -> Tensor:
        """Return hidden states after all layers [B, T, D], for embeddings [B, T, P * D]."""
        assert layers == range(self.config.num_layers), "a slice of parallel tracks"
        states, through, left = x_BTD.chunk(self.num_tracks, dim=-1), super()._through, iter(layers)
        for _ in range(NUM_SEGMENTS):
            ends = [through(state, islice(left, self.depth), *seen) for state in states]
            everywhere = torch.cat(self.group.gather(torch.stack(ends)))  # in the order of tracks, so that bits agree
            mean_BTD = reduce(torch.add, everywhere.unbind()) / self.num_everywhere
            states = (mean_BTD,) * self.num_tracks
        return mean_BTD


def randomise(tracks: ParallelTracks, seed: int, *, dtype: torch.dtype) -> None:
    """Set random weights that keep the scale of hidden states; a track's do not depend on its rank; norms are ones."""
    shape = tracks.track.vocab_size, tracks.track.hidden_size
    first = tracks.group.rank * tracks.num_tracks
    columns = [_random(shape, seed, track, 0) for track in range(first, first + tracks.num_tracks)]
    tracks.embedding.weight = _frozen(torch.cat(columns, dim=1), dtype)
    tracks.lm_head.weight = _frozen(_random(shape, seed, tracks.num_everywhere, 0), dtype)
    tracks.final_norm = _frozen(torch.ones(shape[1]), dtype)
    for layer, (track, number) in zip(tracks.layers, tracks.places, strict=True):
        for place, (name, weight) in enumerate(list(layer.named_parameters())):
            value = torch.ones(weight.shape)
            if weight.dim() == 2:
                value = _random(tuple(weight.shape), seed, track, 1 + number, place)
            owner, _, leaf = name.rpartition(".")
            setattr(layer.get_submodule(owner), leaf, _frozen(value, dtype))


def _random(shape: tuple[int, ...], *seeds: int) -> Tensor:
    seed = 0
    for one in seeds:
        seed = (seed * 1_000_003 + one + 1) % (1 << 62)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])


def _frozen(tensor: Tensor, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(tensor.to(dtype), requires_grad=False)


class ParallelTrackConfig(Strict):
    """`config.json` of a draft of parallel tracks: the sizes of one track; all else is as in the target.

    The tracks are divided evenly over a lane's ranks; each has two segments of layers. There are no trained weights.
    """

    speculators_model_type: Literal["mirrorsd_parallel_track"] = "mirrorsd_parallel_track"
    num_tracks: Count
    layers_per_segment: Count
    hidden_size: Width
    intermediate_size: Width
    num_heads: Width
    num_kv_heads: Width
    head_dim: Width
    weights: Literal["random"]
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0

    def track(self, target: ModelConfig) -> ModelConfig:
        """Return the config of one track of a draft for this target; raise `ModelError` for contradictory sizes."""
        return replace(
            target,
            num_layers=NUM_SEGMENTS * self.layers_per_segment,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            tie_embeddings=False,
        )


class TrackDrafter(Drafter):
    """A draft model of parallel tracks, which torch computes on every lane, as no other back end supports tracks."""

    def run_on(self, new_backend: Callable[[Decoder], Backend]) -> None:
        """See `WindowDrafter`; does nothing."""


def load_parallel_track(folder: Path, target_folder: Path, *, dtype: torch.dtype, group: Group | None) -> TrackDrafter:
    """Return the drafter with this rank's tracks; all ranks of the group run it together.

    Raises `ModelError` if tracks cannot be divided evenly or for the target's family, `ModelFormatError` if damaged.
    """
    config = read_config(folder, ParallelTrackConfig, "a draft of parallel tracks comes with one")
    target = ModelConfig.from_folder(target_folder)
    target.require_rotary(str(folder / CONFIG_FILE))
    try:
        track = config.track(target)
    except ModelError as error:
        raise ModelFormatError(f"{folder / CONFIG_FILE}: {error}") from error
    with torch.device("meta"):
        tracks = ParallelTracks(track, config.num_tracks, group or Group.alone())
    randomise(tracks, config.seed, dtype=dtype)
    tracks.rotary = Rotary(track, target.max_position)
    return TrackDrafter(as_draft(tracks.eval().to(tracks.group.device), target.vocab_size))
