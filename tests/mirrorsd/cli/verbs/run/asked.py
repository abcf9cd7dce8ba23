"""What is asked for, and rows as they were written."""

import json

PROMPTS = ("w5 w17 w3 w44 w8", "w9 w9 w4", "w60 w2 w33 w12")
SETTINGS = ("--dtype", "float32", "--max-new-tokens", "24", "--quiet")
METHODS = {
    "autoregressive": {"method": "autoregressive"},
    "speculative": {"method": "speculative"},
    "mirror": {"method": "mirror", "root_source": "exit", "exit_layer": 2, "exit_top_k": 4},
}
TREES = {
    "medusa": {"method": "medusa", "num_speculative_tokens": 2, "tree_size": 5},
    "eagle": {"method": "eagle2", "num_speculative_tokens": 3, "tree_size": 6, "tree_top_k": 3},
}


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
