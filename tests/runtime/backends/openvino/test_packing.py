"""Matrices are rounded once, kept on disk, and taken from there; rows that share numbers are rounded as such."""

import pytest
import torch

from runtime.backends.openvino import kept_files
from runtime.backends.openvino.kept_files import compiled_folder
from runtime.backends.openvino.packing import digest_of, packed, packed_int4, quantized, quantized_int4

FORMS = ["int8", "int4"]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MIRRORSD_CACHE", str(tmp_path / "cache"))


def matrix(rows=6, inputs=128, seed=0):
    weight = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed))
    weight[:, inputs // 2 :] *= 100
    return weight


def whole(found):
    """The numbers that a packed matrix stands for."""
    rows, inputs = found.shape
    steps = found.values
    if found.form == "int4":
        steps = torch.stack([(steps << 4) >> 4, steps >> 4], dim=-1)
    groups = found.scales.numel() // rows
    return (steps.float().view(rows, groups, -1) * found.scales.float().view(rows, groups, 1)).view(rows, inputs)


@pytest.mark.parametrize(("form", "inputs"), [("int8", 128), ("int4", 128), ("int4", 36)])
def test_numbers_are_within_half_a_step(form, inputs) -> None:
    weight = matrix(inputs=inputs)
    found = packed(weight, form, torch.bfloat16)
    groups = found.scales.numel() // len(weight)
    error = (whole(found) - weight).abs().view(len(weight), groups, -1)
    assert (error <= 0.52 * found.scales.float().view(len(weight), groups, 1)).all()
    assert found.num_bytes == found.values.nbytes + found.scales.nbytes


def test_what_is_not_rounded_stays_where_it_is() -> None:
    weight = matrix()
    assert packed(weight, "float32", torch.float32).values.data_ptr() == weight.data_ptr()
    assert not compiled_folder().exists()


@pytest.mark.parametrize("form", FORMS)
def test_many_rows_are_rounded_as_few_are(form, monkeypatch) -> None:
    monkeypatch.setattr("runtime.backends.openvino.packing._AT_ONCE", 300)
    weight = matrix(rows=7)
    steps, scales = (quantized_int4 if form == "int4" else quantized)(weight)
    found = packed(weight, form, torch.bfloat16)
    assert torch.equal(found.values, packed_int4(steps) if form == "int4" else steps.view(-1))
    assert torch.equal(found.scales.view(-1), scales.view(-1))


def test_int4_is_packed_by_twos() -> None:
    values = torch.tensor([[1, -7], [7, -1]], dtype=torch.int8)
    assert packed_int4(values).view(torch.uint8).tolist() == [0x91, 0xF7]


@pytest.mark.parametrize("form", FORMS)
def test_a_matrix_is_rounded_once_for_all_processes(form, monkeypatch) -> None:
    first = packed(matrix(), form, torch.bfloat16)
    assert first.block.is_mapped
    monkeypatch.setattr("runtime.backends.openvino.packing._stored", lambda *_: pytest.fail("it was rounded again"))
    again = packed(matrix(), form, torch.bfloat16)
    again.block.give_back()
    assert torch.equal(whole(again), whole(first))
    assert first.digest() == again.digest()


def test_another_matrix_or_form_has_another_file() -> None:
    for weight, form in ((matrix(), "int8"), (matrix(seed=1), "int8"), (matrix(), "int4"), (matrix().T, "int8")):
        packed(weight, form, torch.bfloat16)
    assert len(list(compiled_folder().iterdir())) == 4


def test_a_file_that_is_not_whole_is_made_again() -> None:
    expected = whole(packed(matrix(), "int8", torch.bfloat16)).clone()
    (path,) = compiled_folder().iterdir()
    path.write_bytes(path.read_bytes()[:100])
    assert torch.equal(whole(packed(matrix(), "int8", torch.bfloat16)), expected)
    assert path.stat().st_size > 100


def test_a_folder_that_cannot_be_written_costs_memory_alone(tmp_path) -> None:
    compiled_folder().parent.mkdir()
    compiled_folder().write_text("in the way")
    found = packed(matrix(), "int8", torch.bfloat16)
    assert not found.block.is_mapped
    found.block.give_back()
    assert (whole(found) - matrix()).abs().max() < 2


def test_what_was_not_used_for_longest_makes_room(monkeypatch) -> None:
    monkeypatch.setattr(kept_files, "_MOST_BYTES", 1)
    for seed in range(3):
        packed(matrix(seed=seed), "int8", torch.bfloat16)
        assert len(list(compiled_folder().iterdir())) == 1


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_share_numbers_share_a_scale(form) -> None:
    block = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    weight = block.as_strided((20, 128), (6, 1), 7)
    found = packed(weight, form, torch.bfloat16)
    step = float(found.scales.float().unique())
    assert ((whole(found) - weight).abs() <= 0.52 * step).all()
    own = packed(weight.contiguous(), form, torch.bfloat16)
    assert (whole(own) - weight).abs().mean() <= (whole(found) - weight).abs().mean()


def test_a_digest_tells_rows_that_share_numbers_from_others() -> None:
    block = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    windows = [block.as_strided((20, 128), (step, 1), start) for step, start in ((6, 0), (6, 1), (4, 0))]
    assert len({digest_of(window) for window in windows}) == 3
    assert digest_of(windows[0]) == digest_of(block.clone().as_strided((20, 128), (6, 1)))
