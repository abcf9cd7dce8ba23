"""Linear layers whose rows come out the same to the last bit, however many rows are computed at once.

Where a verification of several rows differs from plain decoding, the kernel that a number of rows selects is the
reason: on CPUs 1 to 3 rows take others than many do, by dtype, layer and number of threads. So a layer's rows are
filled up to a multiple that a probe finds once for every shape. Attention has a rule of its own
(`runtime.models.attention`). Training, and other devices, take the layers as they are.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_MULTIPLES: Final = (1, 2, 4, 8, 16, 32, 64)
_PROBED_ROWS: Final = (1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 18, 31, 33, 48, 64)
_MOST_OUTPUTS: Final = 512
"""Outputs of a probed layer: no kernel was seen to depend on how many there are beyond these."""


class Linear(nn.Linear):
    """A linear layer, see `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., out] of [..., in]."""
        return linear(x, self.weight, self.bias)

    @property
    def row_multiple(self) -> int:
        """Multiple that the number of rows is filled up to."""
        return _multiple_of(self.weight, self.bias) if self.weight.is_cpu else 1


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Rows [..., in] times a weight [out, in]: [..., out], the bits of every row independent of the others' number."""
    if torch.is_grad_enabled() or not weight.is_cpu:
        return F.linear(x, weight, bias)
    # always of two dimensions: one row of three may take another kernel than one of two
    rows = x.reshape(-1, x.shape[-1])
    num_rows = len(rows)
    missing = -num_rows % _multiple_of(weight, bias)
    if missing:
        rows = F.pad(rows, (0, 0, 0, missing))
    return F.linear(rows, weight, bias)[:num_rows].view(*x.shape[:-1], len(weight))


def rows_are_alike(weight: Tensor, count: int) -> bool:
    """Whether a layer that fills nothing up gives a row the same bits in calls of `count` rows and of multiples."""
    multiple = _fitting_multiple(*_probed(weight, None)) if weight.is_cpu else None
    return multiple is not None and count % multiple == 0


def _multiple_of(weight: Tensor, bias: Tensor | None) -> int:
    return row_multiple(*_probed(weight, bias))


def _probed(weight: Tensor, bias: Tensor | None) -> tuple[int, int, torch.dtype, bool, int]:
    outputs, inputs = min(len(weight), _MOST_OUTPUTS), weight.shape[1]
    return outputs, inputs, weight.dtype, bias is not None, torch.get_num_threads()


def row_multiple(outputs: int, inputs: int, dtype: torch.dtype, has_bias: bool, num_threads: int) -> int:  # noqa: FBT001
    """Rows to fill up to a multiple of, so that a row's bits do not depend on their number; 1 where nothing helps."""
    return _fitting_multiple(outputs, inputs, dtype, has_bias, num_threads) or 1


@cache
def _fitting_multiple(
    outputs: int,
    inputs: int,
    dtype: torch.dtype,
    has_bias: bool,  # noqa: FBT001
    num_threads: int,  # noqa: ARG001
) -> int | None:
    generator = torch.Generator().manual_seed(0)
    most = max(_PROBED_ROWS) + max(_MULTIPLES)
    rows, weight = _cancelling(most, inputs, generator, dtype), torch.randn(outputs, inputs, generator=generator)
    half = inputs // 2
    weight[:, half : 2 * half] = weight[:, :half]
    weight = weight.to(dtype)
    bias = torch.zeros(outputs, dtype=dtype) if has_bias else None
    expected = F.linear(rows, weight, bias)

    @cache
    def is_same(count: int) -> bool:
        return torch.equal(F.linear(rows[:count], weight, bias), expected[:count])

    fitting = (multiple for multiple in _MULTIPLES if all(is_same(count + -count % multiple) for count in _PROBED_ROWS))
    return next(fitting, None)


def _cancelling(count: int, inputs: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Rows of which one half takes away what the other adds: what is left tells the order of any sum over them."""
    half = torch.randn(count, inputs // 2, generator=generator).to(dtype)
    return torch.cat([half, -half, half.new_zeros(count, inputs % 2)], dim=1)
