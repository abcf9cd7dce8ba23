"""Other engines, each in a process of its own on the same cores, for benchmarks/peers.py.

    python benchmarks/_peers.py --serve transformers|llama.cpp --model PATH --threads N --cores C ...

answers JSON lines on its standard input: {"ids": [...], "num_tokens": N} with the seconds of
every token after the first, which is the prompt's. Both decode greedily.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

Next = Callable[[Sequence[int]], int]
"""Read these tokens after those read before; the token that follows."""

PEERS: Final = {"transformers": "transformers", "llama.cpp": "llama_cpp"}
"""Module by engine."""


class Peer:
    """A running peer."""

    def __init__(self, name: str, model: Path, cores: Sequence[int]) -> None:
        command = [sys.executable, __file__, "--serve", name, "--model", str(model), "--threads", str(len(cores))]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(len(cores)))
        self._process = subprocess.Popen(
            [*command, "--cores", *map(str, cores)],
            env=os.environ | threads,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.name = name

    def decode(self, ids: Sequence[int], num_tokens: int) -> float:
        """Mean seconds of each new token after the first."""
        assert self._process.stdin is not None, "a peer without an input"
        assert self._process.stdout is not None, "a peer without an output"
        self._process.stdin.write(json.dumps({"ids": list(ids), "num_tokens": num_tokens}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} has ended (exit code {self._process.wait()})")
        return fmean(json.loads(line))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def serve() -> None:
    """Answer until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", choices=PEERS, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cores", type=int, nargs="+", required=True)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, options.cores)
    begin = (_transformers if options.serve == "transformers" else _llama)(options.model, options.threads)
    for line in sys.stdin:
        print(json.dumps(_decode(begin(), **json.loads(line))), flush=True)


def _decode(following: Next, ids: Sequence[int], num_tokens: int) -> list[float]:
    token, seconds = following(ids), []
    while len(seconds) + 1 < num_tokens:
        start_s = time.perf_counter()
        token = following([token])
        seconds.append(time.perf_counter() - start_s)
    return seconds


def _transformers(folder: Path, num_threads: int) -> Callable[[], Next]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(num_threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def begin() -> Next:
        steps = _cached_steps(model)
        next(steps)
        return steps.send

    return begin


def _cached_steps(model: Any) -> Iterator[Any]:
    """Takes tokens, gives the one that follows; keys and values are kept in between."""
    import torch

    ids, cache = (yield), None
    while True:
        with torch.inference_mode():
            found = model(torch.tensor([list(ids)]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = found.past_key_values
        ids = yield int(found.logits[0, -1].argmax())


def _llama(gguf: Path, num_threads: int) -> Callable[[], Next]:
    import llama_cpp
    import numpy as np

    model = llama_cpp.Llama(
        str(gguf), n_ctx=1024, n_threads=num_threads, n_threads_batch=num_threads, logits_all=False, verbose=False
    )

    def begin() -> Next:
        model.reset()

        def following(ids: Sequence[int]) -> int:
            model.eval(list(ids))
            logits = llama_cpp.llama_get_logits(model.ctx)
            return int(np.argmax(np.ctypeslib.as_array(logits, shape=(model.n_vocab(),))))

        return following

    return begin


if __name__ == "__main__":
    serve()
