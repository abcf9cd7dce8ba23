"""Compiled graphs of tests are kept apart from a user's."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def apart(own_cache):
    pass
