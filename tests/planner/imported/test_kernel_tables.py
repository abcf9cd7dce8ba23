"""Kernels of a table add up to passes: with attention at the cached tokens asked for, by devices that share a model."""

import pytest

from planner.imported.engine_page import Told
from planner.imported.import_file import import_files
from tests.planner.imported.test_import_file import LLAMA, times_of

OLDER = """layer_name,input,kv_cache,tp_size,latency(ns)
qkv_proj,1,0,1,50000
attn,1,0,1,5000
attn,1,4096,1,200000
qkv_proj,1,0,2,30000
attn,1,0,2,4000
attn,1,4096,2,100000
"""


@pytest.mark.parametrize(
    ("asked", "taken", "alone_us", "shared_us"), [(0, 0, 55, 34), (512, 0, 55, 34), (8192, 4096, 250, 130)]
)
def test_older_tables_have_attention_by_cached_tokens_and_kernels_by_devices(
    asked, taken, alone_us, shared_us, tmp_path
):
    (tmp_path / "layers.csv").write_text(OLDER)
    alone, shared = import_files([tmp_path / "layers.csv"], Told(target=LLAMA, context=asked)).curves
    assert (alone.of.context, shared.of.context) == (taken, taken)
    assert (times_of(alone)[1], times_of(shared)[1]) == pytest.approx((32e-6 * alone_us, 32e-6 * shared_us))
    assert "of 2 devices" in shared.of.settings
