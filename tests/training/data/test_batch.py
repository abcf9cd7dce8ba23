import pytest
import torch

from training.data import batch
from training.data.batch import cross_entropy_to_mean_rows, mean_rows, soft_cross_entropy


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(7, 5, generator=generator), torch.randn(7, 5, generator=generator)
    return student.requires_grad_(), teacher, torch.randn(11, 5, generator=generator)


@pytest.mark.parametrize("piece", [256, 3])
def test_loss_and_gradient_are_those_of_the_plain_soft_cross_entropy(rows, monkeypatch, piece):
    monkeypatch.setattr(batch, "_ROWS_PER_PIECE", piece)
    student, teacher, head = rows
    plain = soft_cross_entropy(student @ head.T, teacher @ head.T)
    (expected,) = torch.autograd.grad(3 * plain, student)
    loss = cross_entropy_to_mean_rows(student, mean_rows(teacher, head), head)
    (found,) = torch.autograd.grad(3 * loss, student)
    assert torch.allclose(loss, plain, atol=1e-5)
    assert torch.allclose(found, expected, atol=1e-6)


def test_in_bfloat16_they_are_near(rows):
    student, teacher, head = rows
    plain = soft_cross_entropy(student @ head.T, teacher @ head.T)
    (expected,) = torch.autograd.grad(plain, student)
    low = head.to(torch.bfloat16)
    loss = cross_entropy_to_mean_rows(student, mean_rows(teacher, low), low)
    (found,) = torch.autograd.grad(loss, student)
    assert found.dtype == student.dtype
    assert torch.allclose(loss, plain, rtol=0.02)
    assert torch.allclose(found, expected, atol=0.01)


def test_no_rows_have_no_loss(rows):
    _, _, head = rows
    nothing = torch.zeros(0, 5, requires_grad=True)
    loss = cross_entropy_to_mean_rows(nothing, mean_rows(nothing.detach(), head), head)
    loss.backward()
    assert float(loss.detach()) == 0
    assert nothing.grad.shape == (0, 5)
