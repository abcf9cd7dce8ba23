"""What a file of weights says of its arrays is believed only as far as it can be."""

import json

import pytest
from safetensors import SafetensorError

from decoding.errors import ModelError
from runtime.storage.safetensors_files import arrays_of, read_arrays


def test_an_array_without_data_and_with_impossible_columns_is_refused(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(SafetensorError, match=r"an array of shape \[0, 9223372036854775808\]"):
        arrays_of(path)
    with pytest.raises(ModelError, match=r"model\.safetensors: damaged or truncated"):
        read_arrays(tmp_path)
