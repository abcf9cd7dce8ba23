"""The target that drafters are made for."""

import pytest

from tests.tiny_models import tiny_target


@pytest.fixture
def target():
    return tiny_target()
