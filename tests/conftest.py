"""What every test may use. No test reaches a network."""

import errno
import gc
import os
import sys
from pathlib import Path

import hypothesis
import pytest

# on a busy machine an example takes as long as it takes; more of them: pytest --hypothesis-profile=thorough
hypothesis.settings.register_profile("unhurried", deadline=None, max_examples=40)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=400)
hypothesis.settings.load_profile("unhurried")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's threads that wait leave the CPU to other tests
if Path("/proc/cpuinfo").exists() and " amx_tile" in Path("/proc/cpuinfo").read_text():
    # by tiles a row depends on the others where inputs are no multiple of 32, as in tiny models
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# hundreds of processes are started, each of which would compile all modules that it imports
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


class RotatedFolder(pytest.Dir):
    """A folder that each process begins to collect at another place.

    In a clean clone all modules are yet to be compiled. Side by side, processes would all compile the same; so each
    reads what others have compiled meanwhile.
    """

    def collect(self):
        found = list(super().collect())
        worker, count = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
        first = len(found) * int(worker.removeprefix("gw")) // int(count)
        return found[first:] + found[:first]


def pytest_collect_directory(path, parent):
    return RotatedFolder.from_parent(parent, path=path)


def pytest_collection_modifyitems(items) -> None:
    """Begin with journeys, whose files take longest; skip tests that need a GPU where torch finds none."""
    items.sort(key=lambda item: ("journeys" not in item.path.parts, item.path))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"torch {torch.__version__} finds no NVIDIA GPU here"))


def pytest_collection_finish() -> None:
    """Let no collection of garbage look at all that was imported and collected: each would take a third of a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let torch compute with one thread: tiny models gain nothing from more, and lose a lot where cores are busy.

    Before every test, since a recording takes as many as it is asked for from then on.
    """
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def embedded_model_folder() -> Path:
    """The Hugging Face folder of the default model; tests that need it skip where it was never fetched."""
    from runtime.models.default_model import embedded_folder, is_present

    if not is_present():
        pytest.skip("the default model is not in the cache; run: mirrorsd models fetch smollm2-135m-instruct")
    return embedded_folder()


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    """Graphs that are compiled meanwhile are kept apart from a user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRRORSD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("MIRRORSD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def full_disk(monkeypatch):
    """Makes a function of some module or class fail as on a full disk."""

    def fail(owner, name):
        def full(*_, **__):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(owner, name, full, raising=False)  # not every system has every function

    return fail


@pytest.fixture(scope="module")
def forked_lanes():
    """Lanes that are started meanwhile are forked, for what they are started for is not their start."""
    from runtime.lanes.lane import Lane
    from tests.runtime.forked import started_lane

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lane, "start", started_lane)
        yield
