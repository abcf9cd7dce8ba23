"""Curves of whole passes by measured parts: times of vLLM's kernels, summed over a model's layers.

The tables are LLMServingSim's (Copyright (c) 2024, CASYS Lab at KAIST, MIT licence; profiler/perf): of dense layers by
rows, of a mixture's experts by rows and experts touched, and of attention by context. Rows of one sequence read one
cache, so attention is that of one. Of experts as many are touched as rows do in expectation.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from hwprofiles.model_shape import ModelShape, model_shape

ROWS: Final = (1, 2, 4, 8, 16, 32)
CONTEXT: Final = 512
DEVICES: Final = {"RTX4090": "NVIDIA RTX 4090", "RTXPRO6000": "NVIDIA RTX PRO 6000"}
SHAPES: Final = {"Llama-3.1-8B": "llama-3.1-8b", "Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b"}
ONCE: Final = ("embedding", "final_layernorm", "lm_head", "sampler")
TWICE: Final = ("layernorm",)
"""Of a layer; `qk_norm` is timed for both."""
_EXPERTS: Final = "moe:activated_experts="
Times = Mapping[str, Mapping[int, float]]


def served_curves(folder: Path) -> Iterator[tuple[dict[str, str], dict[int, float]]]:
    """Yield what is told of every curve on one device, and milliseconds by rows."""
    tables: dict[tuple[str, str], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines_of(folder / "llmservingsim_dense.csv"):
        if line["tp"] == "1":
            tables[line["device"], line["model"]][line["layer"]][int(line["rows"])] = float(line["time_us"])
    attention_us = {
        (line["device"], line["model"]): float(line["time_us"])
        for line in lines_of(folder / "llmservingsim_attention.csv")
        if (line["tp"], line["prefill_chunk"], line["n_decode"], line["kv_decode"]) == ("1", "0", "1", str(CONTEXT))
    }
    for (device, model), times in tables.items():
        shape = model_shape(SHAPES[model])
        told = {
            "device": DEVICES[device],
            "engine": "vLLM",
            "backend": "CUDA",
            "model": f"{shape.name} (MoE)" if shape.num_experts else shape.name,
            "weights": "BF16",
            "context": f"{CONTEXT}, kernels summed",
            "source": "casys-kaist/LLMServingSim profiler/perf",
            "date": "2026",
        }
        layer_us = attention_us[device, model]
        yield told, {rows: _pass_us(times, shape, rows, layer_us) / 1e3 for rows in ROWS}


def _pass_us(times: Times, shape: ModelShape, rows: int, attention_us: float) -> float:
    once = sum(times[layer][rows] for layer in ONCE)
    parts = [layer for layer in times if layer not in ONCE and not layer.startswith(_EXPERTS)]
    layer = sum(times[part][rows] * (2 if part in TWICE else 1) for part in parts)
    return once + shape.num_layers * (layer + attention_us + _experts_us(times, shape, rows))


def _experts_us(times: Times, shape: ModelShape, rows: int) -> float:
    if not shape.num_experts:
        return 0.0
    known = sorted(
        (int(layer.removeprefix(_EXPERTS)), of[rows])
        for layer, of in times.items()
        if layer.startswith(_EXPERTS) and rows in of
    )
    return float(np.interp(shape.experts_touched(rows), *zip(*known, strict=True)))


def lines_of(path: Path) -> Iterator[Mapping[str, str]]:
    """Yield the lines of a table by column."""
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
