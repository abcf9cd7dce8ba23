"""Captured calls write what a decoder writes on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from _gpu.models import DRAFT, config_of, random_decoder
from _gpu.session import Session
from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.backends.cuda.captured_calls import GraphCapture
from runtime.models.decoder import Decoder
from runtime.models.kv_cache import KVCache


def check(session: Session) -> None:
    """Greedy texts of a small decoder in float32: by captured calls, without capture, and on the CPU layer by layer."""
    torch.backends.cuda.matmul.allow_tf32 = False
    config = replace(config_of(DRAFT, shrink=16, num_layers=4), vocab_size=512)
    prompt, num_tokens = torch.arange(3, 120), 160
    expected = text_by(random_decoder(config, torch.float32, torch.device("cpu")), prompt, num_tokens)
    with session.part("checks") as add:
        for name, capture in (("captured", GraphCapture.captured), ("uncaptured", lambda _, run: run)):
            own, GraphCapture.captured = GraphCapture.captured, capture  # type: ignore[method-assign]
            try:
                backend = CudaBackend(random_decoder(config, torch.float32, session.device), device=session.device)
                found = captured_text(backend, prompt, num_tokens)
            finally:
                GraphCapture.captured = own  # type: ignore[method-assign]
            add({"name": f"{name} calls write the decoder's text in float32", "is_same": found == expected})


def text_by(decoder: Decoder, prompt: torch.Tensor, num_tokens: int) -> list[int]:
    """What a decoder writes after a prompt, layer by layer."""
    cache = KVCache(decoder.config, len(prompt) + num_tokens, dtype=torch.float32)
    return greedy_text(decoder, cache, prompt, num_tokens, int)


def captured_text(backend: CudaBackend, prompt: torch.Tensor, num_tokens: int) -> list[int]:
    """The same by a back end."""
    text = backend.new_text()
    text.start(len(prompt) + num_tokens)
    return greedy_text(backend, text, prompt, num_tokens, lambda best: int(backend.on_host(best)[0]))


def greedy_text(
    model: Any, cache: Any, prompt: torch.Tensor, num_tokens: int, on_host: Callable[[torch.Tensor], int]
) -> list[int]:
    """The ids of a prompt and of what follows it."""
    ids = prompt.tolist()
    for _ in range(num_tokens):
        positions = torch.arange(cache.cursor, len(ids))
        x_BTD = model.embedding(torch.tensor([ids[cache.cursor :]]))
        x_BTD = model.run_layers(x_BTD, 0, model.config.num_layers, positions=positions, cache=cache)
        cache.advance(len(positions))
        ids.append(on_host(model.logits(x_BTD)[0, -1].argmax()))
    return ids
