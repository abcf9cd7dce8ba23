"""The real world: real models on real lanes, by torch or by compiled graphs.

The road of one `yield lanes.target.verify(window)` to the layers and back:

    the caller's process    engine.py                    starts lanes, loads models, runs the method
                            lanes/sequence_lanes.py      drives it: waits for every handle that it yields
                            lanes/target_lane.py         turns the verb into an operation, the answer into spans
                            lanes/lane.py                sends it, and starts, loses and ends the process
    on the way              wire/operations.py, codec.py what crosses: fields and replies by their types
                            wire/channel.py              how: JSON and arrays over a socket
    the lane's process      worker/process.py, server.py pinned to its cores; answers first in, first out
                            worker/*_models.py           loads models: for torch, or for graphs without torch
                            worker/roles.py              the operation's handler, for the target or the draft
                            target/target_model.py       embeds the rows, keeps keys, picks the accepted
                            backends/                    what computes: torch layer by layer, or compiled graphs
                            models/decoder.py, masks.py  the layers of torch; graphs are backends/openvino/graphs/
                            verification/rules.py        the verdict, which goes back the same way

A draft goes the same road by lanes/draft_lane.py and drafters/, a folder for each kind. What is on this road is written
for arrays of either library, in the words of arrays.py.
"""

from runtime.instruction_set import cap_instruction_set

cap_instruction_set()  # before torch or OpenVINO computes: afterwards it is too late
