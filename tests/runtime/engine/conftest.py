"""An engine of tiny models on real processes."""

import pytest

from tests.runtime.engine.schedules import PROMPT, for_folders, new_engine
from tests.runtime.forked import with_forked_lanes


@pytest.fixture(scope="session")
def engine(tiny_folders):
    with with_forked_lanes(new_engine(tiny_folders)) as engine:
        yield engine


@pytest.fixture(scope="session")
def coarse_engine(tiny_folders):
    with with_forked_lanes(new_engine(tiny_folders, dtype="bfloat16")) as engine:
        yield engine


@pytest.fixture
def run(engine, tiny_folders):
    def run(schedule, prompt=PROMPT, max_new_tokens=24, **options):
        return engine.generate(for_folders(schedule, tiny_folders), prompt, max_new_tokens=max_new_tokens, **options)

    return run
