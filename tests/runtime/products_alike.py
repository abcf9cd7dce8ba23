"""Prints by shape how many numbers of OpenVINO's products in bfloat16 depend on the number of rows of the call.

Run as a program, since instructions are chosen once in a process: `python -m tests.runtime.products_alike`.
"""

import json
import sys

import numpy as np

from runtime.arrays import BFLOAT16, FLOAT32
from runtime.backends.lane_device import Device
from runtime.backends.openvino.compiler import Compiler
from runtime.backends.openvino.graph import ANY, OUT, Constants, X, head_graph
from runtime.backends.openvino.packing import PackedMatrix

SHAPES = (
    (576, 1536),
    (1536, 576),
    (576, 49152),
    (1024, 3072),
    (4096, 1024),
    (896, 4864),
    (200, 400),
    (208, 416),
    (520, 200),
)
"""Inputs and outputs, of decoders of 135 million to 8 billion weights, and of inputs that do not fill whole tiles."""
NUM_ROWS, CALLS = 128, (1, 2, 3, 5, 9, 16, 64)


def main():
    """Print it as JSON, with the instructions that the products use."""
    generator, found, used = np.random.default_rng(0), {}, set()
    compiler = Compiler(Device.of_lane("openvino:CPU"), "bfloat16", 1)
    for inputs, outputs in SHAPES:
        weight = PackedMatrix("bfloat16", (outputs, inputs), generator.normal(size=(outputs, inputs)).astype(BFLOAT16))
        x = generator.normal(size=(NUM_ROWS, inputs)).astype(np.float32)
        constants = Constants(BFLOAT16, FLOAT32)
        product = compiler.compiled(head_graph(weight, ANY, constants))
        whole = product({X: x})[OUT].copy()
        assert np.abs(whole - x @ weight.values.astype(np.float32).T).max() < 0.02 * np.abs(whole).max()
        for rows in CALLS:
            calls = [product({X: x[start : start + rows]})[OUT].copy() for start in range(0, NUM_ROWS, rows)]
            found[f"{inputs} inputs, {outputs} outputs, {rows} rows"] = int((np.concatenate(calls) != whole).sum())
        for node in product.get_runtime_model().get_ops():
            facts = {name: value.astype(str) for name, value in node.get_rt_info().items() if name.endswith("Type")}
            if facts["layerType"] == "FullyConnected":
                used.add(facts["primitiveType"])
    json.dump({"differing": found, "used": sorted(used)}, sys.stdout)


if __name__ == "__main__":
    main()
