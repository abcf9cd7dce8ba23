"""A folder of every kind, for tests that do not name one."""

import pytest

from tests.runtime.drafters.folders.kinds import KINDS


@pytest.fixture(params=KINDS)
def name(request):
    return request.param


@pytest.fixture
def kind(name):
    return KINDS[name]


@pytest.fixture
def made(kind, target):
    return kind.make(target)


@pytest.fixture
def folder(kind, made, target, tmp_path):
    kind.save(made, tmp_path / "trained", target)
    return tmp_path / "trained"
