"""The paper's machine, models and table, and the fit, which several tests look at."""

import pytest

from hwprofiles.model_shape import model_shape
from hwprofiles.platform import load_platform
from planner.reproduce.fitted_table import fit
from planner.reproduce.published_table import PublishedTable, load_table
from planner.reproduce.reproduction import Reproduction
from planner.reproduce.setup import Setup
from sim.derived.roofline import StoredModel


@pytest.fixture(scope="session")
def setup() -> Setup:
    target, draft = (
        StoredModel(shape=model_shape(name), weights="bf16") for name in ("qwen3-14b", "mirror-track-0.6b")
    )
    return Setup.of(load_platform("m2-ultra-x8"), target, draft)


@pytest.fixture(scope="session")
def table() -> PublishedTable:
    return load_table("mirror-sd-qwen3-14b")


@pytest.fixture(scope="session")
def fitted(table: PublishedTable, setup: Setup) -> Reproduction:
    return fit(table, setup)
