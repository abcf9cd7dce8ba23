"""A draft model of parallel tracks: narrow decoders side by side that synchronise twice in a step.

The layout is that of the Mirror-SD paper (arXiv 2510.13161): two segments of layers, with a synchronisation after each.
The paper does not say what is exchanged; here it is the mean of the tracks' hidden states. The result has the same bits
however tracks are divided over ranks; a single track is a plain `Decoder`.
Shapes: legend of `runtime.models.decoder`; D is the width of one track, P the number of tracks on this rank.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from decoding.errors import ModelError
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.language_model.folder import NUM_SEGMENTS, as_draft, read_tracks
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, Rotary, new_embedding
from runtime.models.hf_config import CONFIG_FILE
from runtime.parallel.group import Group


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


def load_parallel_track(folder: Path, target_folder: Path, *, dtype: torch.dtype, group: Group | None) -> Drafter:
    """Return the drafter with this rank's tracks; all ranks of the group run it together.

    Torch computes it layer by layer on every lane, as no other back end supports tracks. Raises `ModelError` if tracks
    cannot be divided evenly or for the target's family, `ModelFormatError` if damaged.
    """
    target = ModelConfig.from_folder(target_folder)
    target.require_rotary(str(folder / CONFIG_FILE))
    config, track = read_tracks(folder, target)
    with torch.device("meta"):
        tracks = ParallelTracks(track, config.num_tracks, group or Group.alone())
    randomise(tracks, config.seed, dtype=dtype)
    tracks.rotary = Rotary(track)
    return Drafter(as_draft(tracks.eval().to(tracks.group.device), target.vocab_size))
