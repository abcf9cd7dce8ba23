"""Matrices are rounded once, kept on disk, and taken from there; rows that share numbers are rounded as such."""

import numpy as np
import pytest

from runtime.arrays import BFLOAT16, FLOAT32
from runtime.backends.lane_device import Device
from runtime.backends.openvino.buckets import limits_of
from runtime.backends.openvino.compiler import Compiler, type_of_products
from runtime.backends.openvino.disk_cache import compiled_folder
from runtime.backends.openvino.graph import ANY, Constants, X, head_graph
from runtime.backends.openvino.packing import digest_of, packed, packed_int4, quantized
from runtime.instruction_set import has_vnni

pytestmark = pytest.mark.usefixtures("empty_cache")
FORMS = ["int8", "int4"]


def matrix(rows=6, inputs=128, seed=0):
    weight = np.random.default_rng(seed).standard_normal((rows, inputs), np.float32)
    weight[:, inputs // 2 :] *= 100
    return weight


def windows_of(block, shape, step, start=0):
    """Rows of numbers that overlap in memory."""
    return np.lib.stride_tricks.as_strided(block[start:], shape, (step * block.itemsize, block.itemsize))


def whole(found):
    """The numbers that a packed matrix stands for."""
    rows, inputs = found.shape
    steps = found.values
    if found.form == "int4":
        steps = np.stack([(steps << 4) >> 4, steps >> 4], axis=-1)
    groups = found.scales.size // rows
    wide = steps.astype(np.float32).reshape(rows, groups, -1)
    return (wide * found.scales.astype(np.float32).reshape(rows, groups, 1)).reshape(rows, inputs)


@pytest.mark.parametrize(("form", "inputs"), [("int8", 128), ("int4", 128), ("int4", 36)])
def test_numbers_are_within_half_a_step(form, inputs):
    weight = matrix(inputs=inputs)
    found = packed(weight, form, BFLOAT16)
    groups = found.scales.size // len(weight)
    error = np.abs(whole(found) - weight).reshape(len(weight), groups, -1)
    assert (error <= 0.52 * found.scales.astype(np.float32).reshape(len(weight), groups, 1)).all()
    assert found.num_bytes == found.values.nbytes + found.scales.nbytes


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("inputs", [35, 36, 128])
def test_products_of_any_number_of_rows_are_those_with_the_numbers(form, inputs):
    device = Device.of_lane("openvino:CPU")
    dtype = limits_of(device).half
    error = 2**-7 if has_vnni() else 1e-5  # such a CPU rounds the inputs to int8, in groups
    found, x = packed(matrix(inputs=inputs), form, dtype), matrix(rows=5, inputs=inputs, seed=1)
    constants = Constants(dtype, type_of_products(device, dtype))
    # a graph of dynamic shape reads its weights at its first call
    product = Compiler(device, form, 1).compiled(head_graph(found, ANY, constants))
    expected = x.astype(dtype).astype(np.float32) @ whole(found).T
    for rows in (x, x[:1]):
        assert np.allclose(product({X: rows})[0], expected[: len(rows)], atol=error * np.abs(expected).max())


@pytest.mark.parametrize("form", FORMS)
def test_no_cpu_dequantises_weights_when_it_compiles(form):
    """In products of bfloat16 a CPU with AMX did, and was as slow as with weights of 16 bits."""
    device = Device.of_lane("openvino:CPU")
    half = limits_of(device).half
    constants = Constants(half, type_of_products(device, half))
    product = Compiler(device, form, 1).compiled(head_graph(packed(matrix(), form, half), ANY, constants))
    product({X: np.zeros((1, 128), np.float32)})  # a graph of dynamic shape reads its weights at its first call
    nodes = [
        (node.get_rt_info()["layerType"].astype(str), node.get_output_element_type(0).get_type_name())
        for node in product.get_runtime_model().get_ops()
    ]
    assert ("Const", {"int8": "i8", "int4": "i4"}[form]) in nodes
    assert "Eltwise" not in dict(nodes)


def test_what_is_not_rounded_stays_where_it_is():
    weight = matrix()
    assert packed(weight, "float32", FLOAT32).values is weight
    assert not compiled_folder().exists()


@pytest.mark.parametrize("half", [BFLOAT16, np.dtype(np.float16)])
def test_what_is_needed_wider_is_mapped_from_a_file_but_for_small_matrices(half):
    weight = matrix(rows=600, inputs=600).astype(half)
    first, again = (packed(weight, "bfloat16", FLOAT32) for _ in range(2))
    assert isinstance(first.block, np.memmap)
    assert np.array_equal(first.values, weight.astype(np.float32))
    assert len(list(compiled_folder().iterdir())) == 1
    again.give_back()
    assert np.array_equal(again.values, first.values)
    x, constants = matrix(rows=3, inputs=600, seed=1), Constants(FLOAT32, FLOAT32)
    product = Compiler(Device.of_lane("openvino:CPU"), "float32", 1).compiled(head_graph(again, ANY, constants))
    assert np.allclose(product({X: x})[0], x @ weight.astype(np.float32).T, rtol=1e-3, atol=1e-3)
    small = packed(weight[:9, :9], "bfloat16", FLOAT32)
    assert small.block is None
    assert packed(weight, "bfloat16", half).values is weight


@pytest.mark.parametrize("form", FORMS)
def test_many_rows_are_rounded_as_few_are(form, monkeypatch):
    monkeypatch.setattr("runtime.backends.openvino.packing._AT_ONCE", 300)
    weight = matrix(rows=7)
    steps, scales = quantized(weight, form)
    found = packed(weight, form, BFLOAT16)
    assert np.array_equal(found.values, packed_int4(steps) if form == "int4" else steps.reshape(-1))
    assert np.array_equal(found.scales.reshape(-1), scales.reshape(-1))


def test_int4_is_packed_by_twos():
    values = np.array([[1, -7], [7, -1]], np.int8)
    assert packed_int4(values).view(np.uint8).tolist() == [0x91, 0xF7]


@pytest.mark.parametrize("form", FORMS)
def test_a_matrix_is_rounded_once_for_all_processes(form, monkeypatch):
    first = packed(matrix(), form, BFLOAT16)
    assert isinstance(first.block, np.memmap)
    monkeypatch.setattr("runtime.backends.openvino.packing._stored", lambda *_: pytest.fail("it was rounded again"))
    again = packed(matrix(), form, BFLOAT16)
    again.give_back()
    assert np.array_equal(whole(again), whole(first))
    assert first.digest() == again.digest()


def test_another_matrix_or_form_has_another_file():
    for weight, form in ((matrix(), "int8"), (matrix(seed=1), "int8"), (matrix(), "int4"), (matrix().T, "int8")):
        packed(weight, form, BFLOAT16)
    assert len(list(compiled_folder().iterdir())) == 4


def test_a_folder_that_cannot_be_written_costs_memory_alone(tmp_path):
    compiled_folder().parent.mkdir()
    compiled_folder().write_text("in the way")
    found = packed(matrix(), "int8", BFLOAT16)
    assert not isinstance(found.block, np.memmap)
    found.give_back()
    assert np.abs(whole(found) - matrix()).max() < 2


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_share_numbers_share_a_scale(form):
    block = np.random.default_rng(0).standard_normal(1000, np.float32)
    weight = windows_of(block, (20, 128), 6, 7)
    found = packed(weight, form, BFLOAT16)
    (step,) = np.unique(found.scales.astype(np.float32))
    assert (np.abs(whole(found) - weight) <= 0.52 * step).all()
    own = packed(weight.copy(), form, BFLOAT16)
    assert np.abs(whole(own) - weight).mean() <= np.abs(whole(found) - weight).mean()


def test_a_digest_tells_rows_that_share_numbers_from_others():
    block = np.random.default_rng(0).standard_normal(1000, np.float32)
    windows = [windows_of(block, (20, 128), step, start) for step, start in ((6, 0), (6, 1), (4, 0))]
    assert len({digest_of(window) for window in windows}) == 3
    assert digest_of(windows[0]) == digest_of(windows_of(block.copy(), (20, 128), 6))
