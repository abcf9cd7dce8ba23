"""A fingerprint of a model folder, which tells whether it still holds the same model."""

import hashlib
from pathlib import Path
from typing import Final

import numpy as np

from decoding.files import sha256_of
from runtime.models.hf_config import CONFIG_FILE, GENERATION_FILE
from runtime.models.special_tokens import older_files
from runtime.storage.safetensors_files import read_arrays

_READ_WHOLE: Final = (CONFIG_FILE, GENERATION_FILE, "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_VALUES_PER_WEIGHT: Final = 64


def sampled_sha256(folder: Path) -> str:
    """Return a SHA-256 of everything that determines a model's texts: settings, tokenizer and weights (if any).

    Only some values of every matrix and vector are read, so that large models take no longer than small ones. Raises
    `ModelError` if the weights cannot be read.
    """
    digest = hashlib.sha256()
    for path in (*(folder / name for name in _READ_WHOLE), *older_files(folder)):
        digest.update(f"{path.name} {sha256_of(path) if path.is_file() else None}".encode())
    has_weights = any(folder.glob("*.safetensors"))
    for name, array in sorted((read_arrays(folder) if has_weights else {}).items()):
        flat = array.reshape(-1)
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        if len(flat):
            digest.update(flat[np.linspace(0, len(flat) - 1, _VALUES_PER_WEIGHT, dtype=np.int64)].tobytes())
    return digest.hexdigest()
