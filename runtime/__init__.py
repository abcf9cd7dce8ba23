"""Real runs: executes methods with real models on real lanes, by torch or by compiled models.

The modules that one `yield lanes.target.verify(window)` goes through, from the method to the layers:

    the caller's process    engine.py                    starts lanes, loads models, runs a method
                            lanes/sequence_lanes.py      drives the method: waits for its handles, writes spans
                            lanes/lane_calls.py          requests an operation from a lane and waits for the reply
                            lanes/lane.py                starts and ends a lane's process, detects its loss
    between processes       wire/operations.py, codec.py arguments and replies, encoded by their type hints
                            wire/channel.py              JSON and arrays over a socket
    the lane's process      worker/process.py, server.py runs on its cores; answers requests first in, first out
                            worker/*_models.py           loads models for torch, or compiled ones without torch
                            target/target_model.py       embeds rows, keeps the KV cache, keeps accepted rows
                            backends/                    computes layers: by torch one after another, or compiled
                            models/decoder.py            the layers in torch
                            verification/rules.py        the verdict, which returns the same way
    by OpenVINO, without    compiled_decoder.py          splits rows into calls of fixed sizes
    torch: backends/        kv_buffers.py                KV caches, and the slots of the rows of a call
    openvino/               layer_graphs.py              the compiled models of segments of layers and of heads
                            graph_calls.py               the inputs of a call, and its request bound to a KV cache
                            graph.py, packing.py         builds the graphs, and their constants
                            compiler.py, disk_cache.py   compiles graphs, or reads them from the cache on disk
                            buckets.py                   the fixed sizes

A drafter goes the same way through drafters/, which has a module or folder for each kind. The code works on arrays of
numpy and of torch, by the functions in arrays.py.
"""

from runtime.instruction_set import cap_instruction_set

cap_instruction_set()  # must run before torch or OpenVINO computes anything
