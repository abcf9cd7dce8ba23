"""Every method that can win, with models of the user's own: from the calibration to the text, by what is printed."""

import json
import shlex
import shutil

import pytest
import yaml

from decoding.methods import METHODS
from hwprofiles.host import lanes_of
from tests.journeys.walk import Walk
from tests.mirrorsd.conftest import SIX_NODES, head_folders, tiny_folders  # noqa: F401
from tests.runtime.drafters.folders.kinds import save_head

REAL = [name for name, traits in METHODS.items() if not traits.is_simulated_only]
SPACES = {name: {"methods": [name]} for name in REAL if name not in ("speculative", "mirror")}
SPACES |= {f"speculative {place}": {"methods": ["speculative"], "placements": [place]} for place in ("split", "pooled")}
SPACES |= {
    f"mirror {source}": {"methods": ["mirror"], "root_sources": [source]} for source in ("exit", "draft", "hybrid")
}
PROMPTS = ("w5 w17 w3 w44 w5 w17", "w9 w9 w4 w9 w9")
pytestmark = pytest.mark.skipif(len(lanes_of("cpu")) < 3, reason="split placements need two cores, and there is one")


@pytest.fixture(scope="module")
def heads(tiny_folders, head_folders):  # noqa: F811
    """A head of every kind, by the method that it is for."""
    target, root = tiny_folders.decoder, tiny_folders.target.parent
    save_head("hydra", target, root / "hydra", paths=SIX_NODES)
    save_head("eagle3", target, root / "eagle3")
    return [*head_folders, "hydra", "eagle3"]


@pytest.fixture(scope="module")
def user(tmp_path_factory, tiny_folders, heads, forked_lanes):  # noqa: F811
    """A folder with spaces in its names: models, prompts, and the profile that a calibration wrote.

    All is done in this process, on lanes of torch that start in a moment.
    """
    folder = tmp_path_factory.mktemp("own models")
    shutil.copytree(tiny_folders.target.parent, folder / "my models")
    (folder / "my prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    walk = Walk(folder, processes=(), lanes=None)  # kept ones would be of a target with streams for one without
    models = ("--target", "my models/target", "--drafter", "my models/feature_drafter", "--exits", "my models/exits")
    models += ("--heads", ",".join(["prompt-lookup", *(f"my models/{head}" for head in heads)]))
    how = ("--prompts", "my prompts.jsonl", "--dtype", "float32", "--device", "cpu", "--max-new-tokens", 12)
    how += ("--max-window", 2, "--quick", "--minutes", 1)
    walk("mirrorsd", "calibrate", *models, *how, "--out", "profile.yaml")
    return walk


@pytest.fixture(scope="module")
def best(user):
    """Searches for the best schedule of some kind; the file, and what was printed."""
    [calibrated] = user.done.values()
    user.follow(calibrated)

    def search(name):
        (user.folder / "space.yaml").write_text(yaml.safe_dump(SPACES[name]))
        files = ("--profile", "profile.yaml", "--record", "record.npz", "--space", "space.yaml")
        return f"{name}.yaml", user("mirrorsd", "search", *files, "--out", f"{name}.yaml")

    return search


def test_every_method_has_something_to_draft_with_here():
    """A new method with a head of its own needs a tiny head among these."""
    assert {SPACES[name]["methods"][0] for name in SPACES} == set(REAL)


@pytest.mark.parametrize("name", SPACES)
def test_what_the_search_prints_ends_with_the_text(best, user, name):
    path, searched = best(name)
    runs = user.follow(searched)
    assert [run.words[1] for run in runs] == ["run"]
    user("mirrorsd", "models", "memory", "--schedule", path, "--target", "my models/target")
    played = user("mirrorsd", "simulate", "--schedule", path, "--profile", "profile.yaml", "--record", "record.npz")
    assert user.follow(played)


def test_schedules_of_every_method_are_validated_and_the_page_names_a_command_that_works(best, user):
    given = [word for name in SPACES for word in ("--schedule", best(name)[0])]
    files = ("--profile", "profile.yaml", "--record", "record.npz", "--prompts", "my prompts.jsonl")
    done = user("mirrorsd", "validate", *given, *files)
    said = [one for one in done.printed if one.words[1] == "run"]
    assert len({shlex.join(one.words) for one in said}) == 1
    assert len({one.where for one in said}) == 2
    assert user.follow(done)
    assert user("mirrorsd", "report", "out/validate/validate.json", "--out", "again.html").printed
