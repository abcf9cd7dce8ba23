"""Captured calls write what a decoder writes on the CPU."""

from __future__ import annotations

from dataclasses import replace

import torch

from _gpu.models import DRAFT, config_of, random_decoder
from _gpu.session import Session
from runtime.backends.cuda.capture import GraphCapture
from runtime.backends.cuda.captured_backend import CudaBackend
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
    cache, ids = KVCache(decoder.config, len(prompt) + num_tokens, dtype=torch.float32), prompt.tolist()
    for _ in range(num_tokens):
        positions = torch.arange(cache.cursor, len(ids))
        x_BTD = decoder.embedding(torch.tensor([ids[cache.cursor :]]))
        x_BTD = decoder.run_layers(x_BTD, 0, decoder.config.num_layers, positions=positions, cache=cache)
        cache.advance(len(positions))
        ids.append(int(decoder.logits(x_BTD)[0, -1].argmax()))
    return ids


def captured_text(backend: CudaBackend, prompt: torch.Tensor, num_tokens: int) -> list[int]:
    """The same by a back end."""
    text, ids = backend.new_text(), prompt.tolist()
    text.start(len(prompt) + num_tokens)
    for _ in range(num_tokens):
        positions = torch.arange(text.cursor, len(ids))
        x_BTD = backend.embedding(torch.tensor([ids[text.cursor :]]))
        x_BTD = backend.run_layers(x_BTD, 0, backend.config.num_layers, positions=positions, cache=text)
        text.advance(len(positions))
        (best,) = backend.on_host(backend.logits(x_BTD)[0, -1].argmax())
        ids.append(int(best))
    return ids
