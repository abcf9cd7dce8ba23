"""The target's hidden states on the training text, computed once and kept on disk.

One bfloat16 file per layer, rows in the order of the conversations' tokens; layer `num_layers` after the final norm. A
folder belongs to one target and one list of conversations, takes further layers later, and resumes where it was cut
off.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

import torch
from pydantic import NonNegativeInt, TypeAdapter
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from decoding.errors import TrainingError
from decoding.files import replace_file
from decoding.progress import ReportCount
from runtime.models.decoder import Decoder, causal_mask
from runtime.storage.weight_folder import TargetShape
from training.data.conversations import Conversation, fingerprint

_ROWS_PER_BATCH = 1024
_CONVERSATIONS_PER_SAVE = 128
_FINGERPRINT = "fingerprint"
_DONE = "done.json"
_COUNTS: Final = TypeAdapter(dict[int, NonNegativeInt])


class TargetStates:
    """Hidden states of every token of `conversations` after each layer of `layers` and after the last one.

    Raises `TrainingError` for a layer that is none of the target's, or a folder of other states or that cannot be
    written.
    """

    def __init__(
        self, folder: Path, target: Decoder, conversations: Sequence[Conversation], layers: Sequence[int]
    ) -> None:
        self.folder, self.target, self.conversations = folder, target, conversations
        self.layers = sorted({*layers, target.config.num_layers})
        if not 1 <= self.layers[0] <= self.layers[-1] == target.config.num_layers:
            raise TrainingError(f"layers {list(layers)}: the target has layers 1..{target.config.num_layers}")
        self.starts = [0, *accumulate(len(row.ids) for row in conversations)]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._claim()
            self._files = {layer: self._open(layer) for layer in self.layers}
        except OSError as error:
            msg = f"{folder}: cannot be written ({error}); {len(self.layers)} layers need {self._num_bytes} bytes each"
            raise TrainingError(msg) from error

    @property
    def device(self) -> torch.device:
        """Device of the target and of batches."""
        return self.target.embedding.weight.device

    def rows(self, layer: int, index: int) -> Tensor:
        """States after `layer` for conversation `index`, [tokens, D], bfloat16, on disk."""
        return self._files[layer][self.starts[index] : self.starts[index + 1]]

    def padded(self, layer: int, indices: Sequence[int]) -> Tensor:
        """States after `layer` for several conversations, zero-padded on the right, [B, T, D] bfloat16."""
        return pad_sequence([self.rows(layer, index) for index in indices], batch_first=True).to(self.device)

    def fill(self, progress: ReportCount = lambda *_: None) -> None:
        """Compute what is not there yet; `progress(done, total)` counts conversations."""
        total = len(self.conversations)
        path = self.folder / _DONE
        counts = _read_counts(path) if path.is_file() else {}
        done = min(counts.get(layer, 0) for layer in self.layers)
        while done < total:
            stop = min(done + _CONVERSATIONS_PER_SAVE, total)
            by_length = sorted(range(done, stop), key=lambda index: len(self.conversations[index].ids))
            for batch in _batches(by_length, self.conversations):
                self._compute(batch)
            done = stop
            counts |= {layer: max(done, counts.get(layer, 0)) for layer in self.layers}
            replace_file(path, json.dumps(counts).encode())
            progress(done, total)

    @torch.inference_mode()
    def _compute(self, batch: list[int]) -> None:
        rows = [torch.tensor(self.conversations[index].ids, device=self.device) for index in batch]
        x_BTD = self.target.embedding(pad_sequence(rows, batch_first=True))
        width = x_BTD.shape[1]
        mask = causal_mask(width, x_BTD.dtype).to(self.device)
        positions = torch.arange(width, device=self.device)
        start = 0
        for layer in self.layers:
            x_BTD = self.target.run_layers(x_BTD, start, layer, positions=positions, mask=mask)
            start = layer
            last = layer == self.target.config.num_layers
            kept = self.target.normalise(x_BTD) if last else x_BTD
            for row, index in enumerate(batch):
                self.rows(layer, index).copy_(kept[row, : len(rows[row])])

    @property
    def _num_bytes(self) -> int:
        return self.starts[-1] * self.target.config.hidden_size * torch.bfloat16.itemsize

    def _open(self, layer: int) -> Tensor:
        path = self.folder / f"layer-{layer}.bin"
        _reserve(path, self._num_bytes)
        flat = torch.from_file(
            str(path), shared=True, size=self._num_bytes // torch.bfloat16.itemsize, dtype=torch.bfloat16
        )
        return flat.view(-1, self.target.config.hidden_size)

    def _claim(self) -> None:
        config = self.target.config
        digest = hashlib.sha256(f"{TargetShape.of(config)!r} {config.num_layers}".encode())
        digest.update(self.target.final_norm.float().cpu().numpy().tobytes())
        digest.update(fingerprint(self.conversations).encode())
        path = self.folder / _FINGERPRINT
        if not path.is_file():
            replace_file(path, digest.hexdigest().encode())
        elif path.read_bytes() != digest.hexdigest().encode():
            msg = f"{self.folder}: holds the states of another target or other data; name an empty folder"
            raise TrainingError(msg)


def _read_counts(path: Path) -> dict[int, int]:
    try:
        return _COUNTS.validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        msg = f"{path}: damaged ({error}); delete the folder {path.parent}, and its states are computed again"
        raise TrainingError(msg) from error


def _reserve(path: Path, num_bytes: int) -> None:
    """Take the whole space now: a full disk would otherwise kill the process at some later write to the map."""
    with path.open("ab") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        else:
            file.truncate(num_bytes)


def _batches(indices: Sequence[int], conversations: Sequence[Conversation]) -> list[list[int]]:
    """Neighbours in length, so that padding stays small."""
    batches: list[list[int]] = [[]]
    for index in indices:
        if (len(batches[-1]) + 1) * len(conversations[index].ids) > _ROWS_PER_BATCH and batches[-1]:
            batches.append([])
        batches[-1].append(index)
    return batches
