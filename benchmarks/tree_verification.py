"""What it costs to verify a tree of 64 drafted tokens, compared with a plain forward of 64 rows.

    python benchmarks/tree_verification.py

Plain: 64 rows in text order through all layers and the output head, keys and values cached, nothing decided. Trees:
the whole `TargetModel.verify` of 64 nodes and the last committed token (65 rows), and a path of six nodes whose keys
are moved to the end of the text; once with one tree every time (static), once with another one each time (dynamic),
and once more with the states of three layers for a draft. The four take turns, on random tokens after 256 others.
Writes benchmarks/results/tree_verification.json. Run it on quiet cores.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from _common import EMBEDDED, RESULTS, arguments, measured, quartiles, write_result

from decoding.messages import Window
from hwprofiles.host import describe_host
from mirrorsd.model_pair import find_pair
from runtime.models.decoder import Decoder, causal_mask
from runtime.models.weights import load_decoder
from runtime.target.target_model import TargetModel

RESULT = RESULTS / "tree_verification.json"
CONTEXT: Final = 256
NUM_NODES: Final = 64
PATH_LENGTH: Final = 6
NUM_TREES: Final = 200
"""More than are ever kept, so that every dynamic one is new."""


def main() -> None:
    """Measure both dtypes and write the result file."""
    options = _options()
    torch.set_num_threads(options.threads)
    pair = find_pair(EMBEDDED)
    result: dict[str, Any] = {
        "target": pair.target,
        "platform": describe_host(),
        "measured": measured(pair.target_folder),
        "threads": options.threads,
        "context": CONTEXT,
        "nodes": NUM_NODES,
        "repeats": options.repeats,
    }
    for dtype in ("float32", "bfloat16"):
        decoder = load_decoder(pair.target_folder, dtype=getattr(torch, dtype))
        result[dtype] = measure(decoder, options.repeats)
        print(dtype, json.dumps(result[dtype]))
    write_result(RESULT, result)
    print(RESULT)


def measure(decoder: Decoder, repeats: int) -> dict[str, Any]:
    """Medians in milliseconds, the middle half of the times, and what trees cost over the plain forward."""
    layers = decoder.config.num_layers
    runs = {
        "plain": plain_forward(decoder),
        "static_tree": tree_verification(decoder, num_trees=1),
        "dynamic_tree": tree_verification(decoder, num_trees=NUM_TREES),
        "dynamic_tree_with_features": tree_verification(
            decoder, num_trees=NUM_TREES, feature_layers=(2, layers // 2, layers - 3)
        ),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 3):
        for name, run in runs.items():
            start_s = time.perf_counter()
            run()
            taken_s = time.perf_counter() - start_s
            if repeat >= 3:
                seconds[name].append(taken_s)
    times = {name: quartiles([1e3 * each for each in taken], digits=2) for name, taken in seconds.items()}
    over_plain = {
        name: round(median(tree / plain for tree, plain in zip(taken, seconds["plain"], strict=True)), 3)
        for name, taken in seconds.items()
        if name != "plain"
    }
    return {"milliseconds": times, "over_plain": over_plain}


def plain_forward(decoder: Decoder) -> Callable[[], object]:
    """64 rows in text order."""
    model = TargetModel.of(decoder)
    model.prefill([0], capacity=CONTEXT + NUM_NODES + 1)
    ids = torch.randint(decoder.config.vocab_size, (1, NUM_NODES))
    positions = torch.arange(CONTEXT, CONTEXT + NUM_NODES)
    mask = causal_mask(NUM_NODES, model.dtype, context=CONTEXT)
    model.cache.fill_random(CONTEXT)

    @torch.inference_mode()
    def run() -> None:
        x_BTD = decoder.run_layers(
            decoder.embedding(ids), 0, decoder.config.num_layers, positions=positions, mask=mask, cache=model.cache
        )
        decoder.logits(x_BTD)

    return run


def tree_verification(
    decoder: Decoder, *, num_trees: int, feature_layers: tuple[int, ...] = ()
) -> Callable[[], object]:
    """64 nodes and the last committed token, decided, and a path moved."""
    model = TargetModel.of(decoder)
    model.prefill([0], capacity=CONTEXT + NUM_NODES + 1, feature_layers=feature_layers)
    windows = cycle(list(_trees(decoder.config.vocab_size, num_trees)))
    path = [CONTEXT + 1 + node for node in np.linspace(1, NUM_NODES - 1, PATH_LENGTH).astype(int).tolist()]
    model.cache.fill_random(CONTEXT)

    def run() -> None:
        model.cache.set_length(CONTEXT)
        model.verify(next(windows))
        model.cache.gather(path, CONTEXT + 1)

    return run


def _trees(vocab_size: int, count: int) -> Iterator[Window]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        tokens = rng.integers(vocab_size, size=NUM_NODES).tolist()
        yield Window(tuple(tokens), parents=tuple(int(rng.integers(-1, node)) for node in range(NUM_NODES)))


def _options() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1)")
    parser.add_argument("--repeats", type=int, default=30, help="times kept of each (30)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
