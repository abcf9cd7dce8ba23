"""The real world: real models on real lanes, by torch or by compiled models.

What one `yield lanes.target.verify(window)` passes on its way to the layers and back:

    the caller's process    engine.py                    starts lanes, loads models, runs the method
                            lanes/sequence_lanes.py      drives it: waits for every handle that it yields, writes spans
                            lanes/lane_calls.py          asks the lane for the operation, and waits for its answer
                            lanes/lane.py                sends it, and starts, loses and ends the process
    on the way              wire/operations.py, codec.py what crosses: arguments and replies by their type hints
                            wire/channel.py              how: JSON and arrays over a socket
    the lane's process      worker/process.py, server.py pinned to its cores; answers first in, first out
                            worker/*_models.py           loads models: for torch, or compiled without it
                            worker/roles.py              the operation itself: a method, of the target or the draft
                            target/target_model.py       embeds the rows, keeps keys, picks the accepted
                            backends/                    what computes: torch layer by layer, or compiled models
                            models/decoder.py            the layers of torch
                            verification/rules.py        the verdict, which goes back the same way
    by OpenVINO, without    compiled_decoder.py          cuts rows into calls and picks the size of each
    torch: backends/        texts.py                     keys and values, and where the rows of a call go
    openvino/               layer_graphs.py              the compiled models of the layers that a call passes, and heads
                            calls.py                     their inputs, and the request that is bound to the keys
                            graph.py, packing.py         the graph that is compiled, and its constants
                            compiler.py, kept_files.py   compiles, here or in a process of its own, or reads from disk
                            buckets.py                   sizes

A draft goes the same way through drafters/, a module or folder for each kind. All of it works on arrays of
either library, by the functions of arrays.py.
"""

from runtime.instruction_set import cap_instruction_set

cap_instruction_set()  # before torch or OpenVINO computes: afterwards it is too late
