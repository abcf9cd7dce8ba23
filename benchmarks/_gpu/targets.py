"""What is measured of a target on a GPU: its layers, heads, replays and rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from _gpu.models import TARGETS, config_of, prepared_text, random_decoder
from _gpu.session import Session
from runtime.arrays import log_shares, on_host
from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.backends.cuda.captured_calls import CapturedCall
from runtime.backends.eager import wait
from runtime.models.config import ModelConfig
from runtime.models.vocabulary import ranked_ids

EXIT_IDS: Final = 8


def targets(session: Session) -> None:
    """Layers, heads and rounds of every target."""
    sizes = session.sizes
    for name in TARGETS:
        with session.part("layers") as add:
            config = config_of(name, shrink=sizes.shrink, num_layers=sizes.num_layers)
            backend = CudaBackend(random_decoder(config, session.dtype, session.device), device=session.device)
            heads(session, name, backend)
            for context in [one for one in sizes.contexts if one + max(sizes.rows) <= config.max_position]:
                for rows in sizes.rows:
                    _, call = prepared_text(backend, rows, context)
                    add(
                        {"model": name, "rows": rows, "context": context, **layer_times(session, config, call, context)}
                    )
            replays(session, name, backend)
            rounds(session, name, backend)


def layer_times(session: Session, config: ModelConfig, call: CapturedCall, context: int) -> dict[str, float]:
    """Seconds and bytes of a layer."""
    item = session.dtype.itemsize
    seconds = session.seconds(call.replay) / config.num_layers
    weights = config.num_layer_parameters * item
    keys_values = 2 * config.num_kv_heads * config.head_dim * context * item
    return {
        "seconds": seconds,
        "weight_bytes": weights,
        "key_value_bytes": keys_values,
        "bytes_per_s": (weights + keys_values) / seconds,
    }


def heads(session: Session, name: str, backend: CudaBackend) -> None:
    """The output head, and an exit: the same, the best ids and their way to the host."""
    with session.part("heads") as add:
        for rows in session.sizes.rows:
            x_BTD = torch.randn(1, rows, backend.config.hidden_size).to(session.device, session.dtype)

            def read_exit(x_BTD: torch.Tensor = x_BTD) -> None:
                logits = backend.logits(x_BTD)[0]
                ids = ranked_ids(logits, EXIT_IDS)
                on_host(ids), on_host(log_shares(logits.float(), ids))

            def head(x_BTD: torch.Tensor = x_BTD) -> None:
                backend.logits(x_BTD)

            add({"model": name, "rows": rows, "head_s": session.seconds(head), "exit_s": session.clocked(read_exit)})


def replays(session: Session, name: str, backend: CudaBackend) -> None:
    """A replay against the kernels it is made of, each timed alone."""
    with session.part("replay") as add:
        for context in session.sizes.contexts[:2]:
            _, call = prepared_text(backend, session.sizes.rows[-1], context)
            replay_s, kernels_s = session.seconds(call.replay), kernel_seconds(call.run, session.device)
            add({"model": name, "context": context, "replay_s": replay_s, "kernels_s": kernels_s})


def kernel_seconds(run: Callable[[], object], device: torch.device) -> float:
    """The sum of what the kernels of a run take."""
    kinds = torch.profiler.ProfilerActivity
    is_gpu = device.type == "cuda"
    run()
    with torch.profiler.profile(activities=[kinds.CUDA if is_gpu else kinds.CPU]) as profile:
        run()
        wait(device)
    name = "self_device_time_total" if is_gpu else "self_cpu_time_total"
    return float(sum(getattr(one, name) for one in profile.key_averages())) / 1e6


def rounds(session: Session, name: str, backend: CudaBackend) -> None:
    """Verification after verification as on a hit, the window being there: and what of it nothing runs."""
    with session.part("rounds") as add:
        rows, context = min(8, session.sizes.rows[-1]), session.sizes.contexts[0]
        text, call = prepared_text(backend, rows, context)
        positions, layers = torch.arange(context, context + rows), backend.config.num_layers

        def one_round() -> None:
            x_BTD = backend.embedding(torch.zeros(1, rows, dtype=torch.long))
            x_BTD = backend.run_layers(x_BTD, 0, layers, positions=positions, cache=text)
            on_host(backend.logits(x_BTD)[0].float().argmax(dim=-1))

        round_s, layers_s = session.clocked(one_round), session.seconds(call.replay)
        x_BTD = torch.zeros(1, rows, backend.config.hidden_size, dtype=session.dtype, device=session.device)
        head_s = session.seconds(lambda: backend.logits(x_BTD))
        idle_s = round_s - layers_s - head_s
        add({"model": name, "rows": rows, "round_s": round_s, "layers_s": layers_s, "head_s": head_s, "rest_s": idle_s})
