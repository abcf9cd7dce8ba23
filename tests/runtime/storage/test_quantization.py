import numpy as np
import pytest

from decoding.errors import ModelFormatError
from runtime.arrays import BFLOAT16, FLOAT32
from runtime.storage.quantization import dequantize_rows, pack, quantize_rows, unpack


def test_the_error_of_an_element_is_at_most_half_the_scale_of_its_row():
    matrix = np.random.default_rng(0).standard_normal((9, 33), np.float32)
    matrix[4] *= 1000.0
    values, scales = quantize_rows(matrix)
    back = dequantize_rows(values, scales, FLOAT32)
    for row in range(9):
        largest = max(abs(float(x)) for x in matrix[row])
        assert scales[row] == pytest.approx(largest / 127)
        for x, y in zip(matrix[row].tolist(), back[row].tolist(), strict=True):
            assert abs(x - y) <= largest / 127 / 2 * (1 + 1e-5)


def test_the_largest_element_of_a_row_and_a_row_of_zeros_come_back_unchanged():
    matrix = np.array([[0.5, -2.0, 1.0], [0.0, 0.0, 0.0]], np.float32)
    back = dequantize_rows(*quantize_rows(matrix), FLOAT32)
    assert back[0, 1].item() == pytest.approx(-2.0)
    assert back[1].tolist() == [0.0, 0.0, 0.0]


def test_matrices_are_stored_in_a_byte_per_element_and_vectors_in_bfloat16():
    packed = pack({"w": np.ones((3, 4)), "norm": np.ones(4), "map": np.eye(4)}, unquantized={"map"})
    assert {name: tensor.dtype for name, tensor in packed.items()} == {
        "w": np.int8,
        "w.scale": FLOAT32,
        "norm": BFLOAT16,
        "map": BFLOAT16,
    }


SHAPES = {"w": (3, 4), "norm": (4,)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": None}, "stored.safetensors: the tensor 'w' is missing"),
        ({"w.scale": None}, "the tensor 'w.scale' is missing"),
        ({"extra": np.ones(1)}, "unknown tensor 'extra'; expected only w, norm"),
        ({"norm": np.ones(5)}, r"norm has shape \(5,\), expected \(4,\)"),
        ({"norm": np.ones(4, np.int64)}, "norm is stored as int64"),
        ({"norm": np.array([1.0, float("nan"), 1.0, 1.0])}, "norm holds numbers that are not finite"),
        ({"w.scale": np.array([1.0, float("inf"), 1.0])}, "w holds numbers that are not finite"),
        ({"w.scale": np.array([1.0, 1.0, 3e38])}, "w holds numbers that are not finite"),
        ({"w.scale": np.ones(2)}, "w.scale is not one floating-point scale for each of 3 rows"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_name_of_file_and_tensor(change, message):
    stored = pack({"w": np.full((3, 4), 127.0), "norm": np.ones(4)}) | change
    stored = {name: tensor for name, tensor in stored.items() if tensor is not None}
    with pytest.raises(ModelFormatError, match=message):
        unpack(stored, SHAPES, FLOAT32, source="stored.safetensors")
