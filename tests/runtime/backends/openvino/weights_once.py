"""Prints what a target with an exit takes of memory, in bytes: its weights, once they are read, and after all sizes.

    python -m tests.runtime.backends.openvino.weights_once int8

The target has 69 million weights, and no copies of its graphs; rounded ones are mapped.
"""

import gc
import json
import sys
from pathlib import Path

import torch

from runtime.backends.openvino import buckets
from runtime.backends.openvino.compiled_decoder import OpenVinoBackend
from runtime.memory.freed import give_back_freed
from runtime.models.decoder import Decoder
from runtime.models.random_weights import fill_at_random
from tests.runtime.backends.openvino.test_compiled_decoder import read
from tests.runtime.backends.openvino.test_layer_graphs import plan
from tests.tiny_models import tiny_config

MIDDLING = {"hidden_size": 768, "intermediate_size": 3072, "num_heads": 12, "num_kv_heads": 4, "head_dim": 64}


def main(form):
    buckets.COPIES_BYTES = 0
    config = tiny_config(num_layers=8, vocab_size=1000, max_position=400, **MIDDLING)
    with torch.device("meta"):
        decoder = Decoder(config)
    fill_at_random(decoder, 0, torch.bfloat16, is_shared=form != "bfloat16")
    backend = OpenVinoBackend(with_tables(decoder), device="CPU", form=form, num_threads=1)
    weights = sum(backend._layers[index].num_bytes for index in range(8))
    start = private_bytes()
    backend.prepare(plan(3, num_layers=8, rows=(1,)))
    once = private_bytes() - start
    for cuts, rows in (((3,), 5), ((), 9), ((5,), 8)):
        backend.prepare(plan(*cuts, num_layers=8, rows=(rows,), num_slots=200))
        read(backend, [16, rows], ids=torch.arange(60) % 1000, cuts=cuts)
    sys.stdout.write(json.dumps([weights, once, private_bytes() - start]))


def with_tables(decoder):
    fresh = Decoder(decoder.config)
    decoder.rotary, decoder.lm_head.weight = fresh.rotary, decoder.embedding.weight
    return decoder.eval().requires_grad_(requires_grad=False)


def private_bytes():
    gc.collect()
    give_back_freed()
    return 1024 * int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0])


if __name__ == "__main__":
    main(sys.argv[1])
