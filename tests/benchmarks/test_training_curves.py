import pytest

from runtime.drafters.shipped import find_drafter
from tests.benchmarks.scripts import load_script
from training.judging.card import read_card


@pytest.fixture(scope="module")
def script():
    return load_script("training_curves")


def test_a_share_of_the_text_is_judged_on_the_same_conversations(script) -> None:
    lines = [str(index) for index in range(900)]
    assert script.shortened(lines, 1) == lines
    assert script.shortened(lines, 4) == [*lines[:200], *lines[-100:]]


def test_every_run_differs_from_the_others(script) -> None:
    runs = script.runs()
    assert len({run.name for run in runs}) == len({(run.recipe.model_dump_json(), run.share) for run in runs})
    assert {len(run.recipe.source_layers) for run in runs if run.recipe.kind == "draft"} == {2, 4, 6}


def test_a_folder_of_another_recipe_is_not_taken_for_the_run(script, tmp_path, monkeypatch) -> None:
    run = script.runs()[0]
    (tmp_path / run.name).mkdir()
    (tmp_path / run.name / "drafter").symlink_to(find_drafter("smollm2-135m-draft4"))
    monkeypatch.setattr("sys.argv", ["script", "--data", str(tmp_path / "data"), "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="was trained by another recipe"):
        script.main()
    assert read_card(tmp_path / run.name / "drafter").kind == "draft"
