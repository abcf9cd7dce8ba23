"""What memory holds that no text has written: made as bad as it can be, it must change nothing that is answered."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from runtime.arrays import BFLOAT16
from runtime.backends.openvino import kv_buffers
from runtime.models import kv_cache

LOUD = 300.0
"""A row that saw such a key, or gathered such a value, would say something else."""


def fill(number, *parts):
    """The same number in all slots; keys and values of graphs are bfloat16 as integers of its bits."""
    for slots in parts:
        if isinstance(slots, torch.Tensor):
            with torch.inference_mode():
                slots.fill_(number)
        else:
            (slots.view(BFLOAT16) if slots.dtype == np.int16 else slots)[...] = number


@contextmanager
def no_numbers_in_memory_that_is_taken():
    """Memory that a text takes holds NaN, be it new, left by another text, grown into or given to branches.

    Hidden slots are multiplied by zero: so whatever part of them is not cleared makes all that is answered NaN.
    """

    def before(given, clear):
        fill(np.nan, *given)
        clear()

    with _around_clearing(before) as patch:
        made, restart, use = (getattr(kv_buffers.GrowingMemory, name) for name in ("_made", "restart", "_use"))

        def poisoned(self, size):
            if size not in self._buffers:
                fill(np.nan, made(self, size).slots)
            return made(self, size)

        def poisoned_restart(self, num_slots=0):
            fill(np.nan, *[buffer.slots for buffer in self._buffers.values()])
            restart(self, num_slots)

        def poisoned_use(self, size, num_kept):
            if size != self._num_slots and size in self._buffers:
                first = min(self._num_valid.get(size, 0), num_kept)
                stop = num_kept if size in self._num_valid else None
                fill(np.nan, self._buffers[size].slots[..., first:stop, :])
            use(self, size, num_kept)

        patch.setattr(kv_buffers.GrowingMemory, "_made", poisoned)
        patch.setattr(kv_buffers.GrowingMemory, "restart", poisoned_restart)
        patch.setattr(kv_buffers.GrowingMemory, "_use", poisoned_use)
        yield


@contextmanager
def loud_numbers_in_slots_that_are_not_written():
    """Slots hold large keys and values from when a text takes them until it writes them: nobody may see them."""

    def after(given, clear):
        clear()
        fill(LOUD, *given)

    with _around_clearing(after):
        yield


@contextmanager
def _around_clearing(around):
    """Call `around(memory, clear)` wherever memory is cleared for a text, by any back end."""
    with pytest.MonkeyPatch.context() as patch:
        clear = kv_buffers.clear
        patch.setattr(kv_buffers, "clear", lambda slots: around([slots], lambda: clear(slots)))
        zero = kv_cache.TorchMemory.clear
        patch.setattr(kv_cache.TorchMemory, "clear", lambda memory: around([memory.slots], lambda: zero(memory)))
        yield patch
