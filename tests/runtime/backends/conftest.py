"""Compiled graphs of tests are kept apart from a user's."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRRORSD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
