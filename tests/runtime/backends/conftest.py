"""Compiled graphs of tests are kept apart from a user's."""

import pytest

from tests.runtime.reading import npu_here


@pytest.fixture(scope="module", autouse=True)
def apart(own_cache):
    pass


@pytest.fixture(scope="module")
def npu_on_cpu(apart):
    with npu_here():
        yield
