"""The words for arrays mean the same in both libraries."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from runtime import arrays as words
from runtime.arrays import BFLOAT16, FLOAT32, as_array, as_tensor
from runtime.models.vocabulary import NO_NUMBER, _ranked_all, best_numbers, best_places, ranked_ids

FLOATS = st.floats(-1e3, 1e3, width=32)
MATRICES = arrays(np.float32, (3, 8), elements=FLOATS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_an_array_and_its_tensor_share_their_memory(dtype):
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    array = as_array(tensor)
    assert array.tolist() == tensor.tolist()
    assert as_tensor(array).dtype == dtype
    assert as_tensor(array).data_ptr() == tensor.data_ptr()
    assert words.numpy_type(dtype) == array.dtype


@given(MATRICES)
def test_bfloat16_is_rounded_alike(matrix):
    ours, theirs = matrix.astype(BFLOAT16), torch.from_numpy(matrix).to(torch.bfloat16)
    assert ours.astype(np.float32).tolist() == theirs.float().tolist()


@given(MATRICES, MATRICES)
def test_arrays_are_put_together_alike(a, b):
    tensors = torch.from_numpy(a), torch.from_numpy(b)
    for axis in (0, 1):
        assert words.concatenated([a, b], axis).tolist() == words.concatenated(tensors, axis).tolist()
        assert words.stacked([a, b], axis).tolist() == words.stacked(tensors, axis).tolist()
    assert words.zeros(a, 2, 5).tolist() == words.zeros(tensors[0], 2, 5).tolist() == np.zeros((2, 5)).tolist()


@given(MATRICES)
def test_norms_and_shares_agree_to_rounding(matrix):
    tensor = torch.from_numpy(matrix)
    near = {"atol": 1e-4, "rtol": 1e-4}
    scaled = (words.normalise_features(rows[None], 1e-5) for rows in (matrix, tensor))
    torch.testing.assert_close(*map(torch.as_tensor, scaled), **near)
    ids = np.array([[0, 3], [1, 1], [7, 2]])
    ours, theirs = words.log_shares(matrix, ids), words.log_shares(tensor, torch.from_numpy(ids))
    torch.testing.assert_close(torch.from_numpy(ours), theirs, **near)
    assert (ours < 1e-4).all()


@given(arrays(np.float32, (9, 16), elements=FLOATS), st.integers(0, 8), st.integers(1, 9))
def test_a_norm_of_a_row_depends_on_no_other(matrix, start, count):
    weight = np.linspace(0.5, 2, 16, dtype=np.float32)
    some = words.rms_norm(matrix[start : start + count], weight, 1e-5)
    assert some.tolist() == words.rms_norm(matrix, weight, 1e-5)[start : start + count].tolist()


@given(st.integers(2, 1000), st.integers(1, 7), st.sampled_from([5, 40, 700]), st.integers(0, 99))
def test_ids_are_ranked_alike(levels, count, vocab_size, seed):
    """Few levels of logits leave many equals, also beyond the short look; zero has no sign."""
    logits = np.random.default_rng(seed).integers(-levels, levels, (4, vocab_size)).astype(np.float32) / levels
    logits[:, ::50] = -0.0
    tensor, count = torch.from_numpy(logits), min(count, vocab_size)
    for rows in (logits, tensor, tensor.bfloat16()):
        expected = [sorted(range(vocab_size), key=lambda token: (-row[token], token))[:count] for row in rows.tolist()]
        assert ranked_ids(rows, count).tolist() == expected
        if rows is not logits:
            assert _ranked_all(rows, count).tolist() == expected, "as on a GPU"
        assert best_places(rows).tolist() == [row[0] for row in expected]
        if rows is not logits:
            assert best_numbers(rows).tolist() == best_places(rows).tolist()


@pytest.mark.parametrize("place", [0, 3, 7])
def test_one_logit_that_is_no_number_leaves_its_row_without_a_best_token(place):
    logits = torch.arange(16.0).reshape(2, 8)
    logits[0, place] = float("nan")
    for rows in (logits, logits.bfloat16()):
        assert best_numbers(rows).tolist() == [NO_NUMBER, 7]


def test_matrices_start_where_torch_is_fast():
    memory = np.zeros(1000, np.uint8)
    start = -memory.ctypes.data % 64 + 4
    matrix = memory[start : start + 96].view(np.float32).reshape(4, 6)
    tensors = words.as_tensors({"matrix": matrix, "vector": matrix[0]})
    assert tensors["matrix"].data_ptr() % 64 == 0
    assert tensors["vector"].data_ptr() == matrix.ctypes.data
    aligned = words.aligned_empty((4, 6), FLOAT32)
    assert words.as_tensors({"matrix": aligned})["matrix"].data_ptr() == aligned.ctypes.data


def test_a_function_of_inference_leaves_no_trace_for_gradients():
    weight = torch.ones(2, requires_grad=True)
    assert words.inference(lambda: weight * 2)().requires_grad is False
    assert (weight * 2).requires_grad is True
