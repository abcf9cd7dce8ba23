"""Prints what a target with an exit takes of memory, in bytes: its weights, once they are read, and after all sizes.

    python -m tests.runtime.backends.openvino.weights_once int8 int4

The target has 69 million weights, and no copies of its graphs; rounded ones are mapped. Every form has a process of its
own, forked once all is imported.
"""

import gc
import json
import multiprocessing
import sys
from pathlib import Path

import numpy as np

from runtime.arrays import BFLOAT16
from runtime.backends.lane_device import Device
from runtime.backends.openvino import buckets
from runtime.backends.openvino.compiled_decoder import CompiledDecoder
from runtime.backends.openvino.packing import give_back_freed
from runtime.models.config import decoder_shapes
from runtime.storage.stored_decoder import random_arrays, stored_decoder
from tests.runtime.backends.openvino.test_layer_graphs import plan
from tests.runtime.reading import read
from tests.tiny_models import tiny_config

MIDDLING = {"hidden_size": 768, "intermediate_size": 3072, "num_heads": 12, "num_kv_heads": 4, "head_dim": 64}


def taken(form):
    buckets.COPIES_BYTES = 0
    config = tiny_config(num_layers=8, vocab_size=1000, max_position=400, **MIDDLING)
    arrays = random_arrays(decoder_shapes(config), 0, BFLOAT16)
    if form == "bfloat16":  # windows onto one block would be given memory by the graphs
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    stored = stored_decoder(config, arrays)
    backend = CompiledDecoder(stored, device=Device.of_lane("openvino:CPU"), form=form, num_threads=1)
    weights = sum(backend._layers[index].num_bytes for index in range(8))
    start = private_bytes()
    backend.prepare(plan(3, num_layers=8, rows=(1,)))
    once = private_bytes() - start
    for cuts, rows in (((3,), 5), ((), 9), ((5,), 8)):
        backend.prepare(plan(*cuts, num_layers=8, rows=(rows,), num_slots=200))
        read(backend, [16, rows], ids=np.arange(16 + rows), cuts=cuts)
    return weights, once, private_bytes() - start


def private_bytes():
    gc.collect()
    give_back_freed()
    return 1024 * int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0])


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        json.dump(dict(zip(sys.argv[1:], pool.map(taken, sys.argv[1:], chunksize=1), strict=True)), sys.stdout)
