"""Read one rank's share of a Hugging Face folder: of every tensor only the rows or columns that it holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from decoding.errors import ModelError
from runtime.arrays import as_array
from runtime.models.config import ModelConfig
from runtime.models.decoder import Rotary
from runtime.models.random_weights import fill_at_random
from runtime.models.weights import fill
from runtime.parallel.group import Group
from runtime.parallel.sharded_decoder import ShardedDecoder
from runtime.parallel.shares import Run, Share
from runtime.storage.decoder_names import decoder_tensors
from runtime.storage.safetensors_files import weight_files


class Cut(NamedTuple):
    """Part of a tensor: a run of its rows (dimension 0) or columns (1), of so many in all."""

    dimension: int
    run: Run
    whole: int


def load_sharded_decoder(
    folder: Path, group: Group, *, dtype: torch.dtype, max_position: int | None = None
) -> ShardedDecoder:
    """This rank's share of the decoder of a Hugging Face folder, on the group's device, without gradients.

    Of a folder that asks for random weights they are made here; they are other ones than those of a whole model.

    Raises:
        ModelError: the model cannot be split over so many ranks; a file is missing or truncated, a tensor is missing,
            has the wrong shape, or numbers that are not finite.
    """
    config = ModelConfig.from_folder(folder)
    with torch.device("meta"):
        decoder = ShardedDecoder(config, group)
    if config.random_seed is None:
        held = {name for name, _ in decoder.named_parameters(remove_duplicate=False)}
        wanted = {ours: theirs for ours, theirs in decoder_tensors(config).items() if ours in held}
        found = read_shares(folder, cuts(config, decoder.share, wanted))
        fill(decoder, wanted, found, dtype, folder=folder, device=group.device)
    else:
        fill_at_random(decoder, config.random_seed, dtype, group.device)
    decoder.tie()
    decoder.rotary = Rotary(config, max_position or config.max_position).to(group.device)
    return decoder.eval().requires_grad_(requires_grad=False)


def cuts(config: ModelConfig, share: Share, wanted: Mapping[str, tuple[str, ...]]) -> dict[str, Cut | None]:
    """What a rank reads of every tensor, by the file's name for it; None is all of it.

    `wanted` has the tensors of each of our parameters, in the order in which they are put together.
    """
    size = config.head_dim
    heads = Cut(0, share.heads.times(size), config.num_heads * size)
    kv_heads = Cut(0, share.kv_heads.times(size), config.num_kv_heads * size)
    hidden = Cut(0, share.hidden, config.intermediate_size)
    columns_of = {"out.weight": heads._replace(dimension=1), "down.weight": hidden._replace(dimension=1)}
    rows_of = {"gate_up": hidden, "lm_head": Cut(0, share.vocabulary, config.vocab_size)}
    found: dict[str, Cut | None] = {}
    for ours, theirs in wanted.items():
        if ".qkv." in ours:
            found |= dict(zip(theirs, (heads, kv_heads, kv_heads), strict=True))
            continue
        cut = next((cut for part, cut in (columns_of | rows_of).items() if f".{part}." in f".{ours}."), None)
        found |= dict.fromkeys(theirs, cut)
    return found


def read_shares(folder: Path, wanted: Mapping[str, Cut | None]) -> dict[str, NDArray[Any]]:
    """The wanted parts of the tensors of a folder, those that it has; nothing else of them is read.

    Raises:
        ModelError: no safetensors file, or one that is damaged; a tensor is not of the size that it is cut by.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in wanted.keys() & set(file.keys()):
                    arrays[name] = as_array(_read(file, name, wanted[name], path))
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: damaged or truncated ({error}); fetch or copy it again") from error
    return arrays


def _read(file: Any, name: str, cut: Cut | None, path: Path) -> Tensor:
    if cut is None:
        whole: Tensor = file.get_tensor(name)
        return whole
    view = file.get_slice(name)
    shape = view.get_shape()
    if len(shape) <= cut.dimension or shape[cut.dimension] != cut.whole:
        raise ModelError(f"{path}: {name} has shape {shape}; config.json asks for {cut.whole} in place {cut.dimension}")
    run = slice(cut.run.start, cut.run.stop)
    part: Tensor = view[run] if cut.dimension == 0 else view[:, run]
    return part
