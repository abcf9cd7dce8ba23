from pathlib import Path

import pytest

from decoding.errors import ConfigError
from training.recipe import load_recipe

TEXTS = ("selfgen", "passages")
SHIPPED = sorted((Path(__file__).parents[2] / "training" / "recipes").glob("*.yaml"))

GOOD = """\
kind: draft
source_layers: [1, 2]
exit_features: [2]
feature_layer: 1
optimisation:
  num_tokens: 1000
"""


@pytest.mark.parametrize(
    "path", [path for path in SHIPPED if path.stem.split("-")[-1] not in TEXTS], ids=lambda path: path.stem
)
def test_a_shipped_recipe_is_valid(path):
    recipe = load_recipe(path)
    assert recipe.optimisation.num_tokens > 100_000


def test_every_kind_and_a_draft_without_features_are_shipped():
    names = {path.stem.removeprefix("smollm2-135m-") for path in SHIPPED}
    assert names >= {"draft4", "draft4-tokens", "exits", "medusa", "hydra", "eagle1", "eagle3", "streams"}
    assert names >= {"draft4-streams", "draft4-streaming"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: draft", "kind: horse", r"recipe.yaml:1:\d+: .*'draft', 'exit'"),
        ("source_layers: [1, 2]", "source_layers: []", r"recipe.yaml:2:\d+: .*source_layers"),
        ("source_layers: [1, 2]", "source_layers: [0, 2]", r"recipe.yaml:2:\d+: .*greater than or equal to 1, found 0"),
        ("feature_layer: 1", "feature_layer: 2", r"feature_layer 2 is outside 0\.\.1"),
        ("num_tokens: 1000", "num_tokens: -5", r"recipe.yaml:6:\d+: .*greater than 0, found -5"),
        ("num_tokens: 1000", "tokens: 5", r"recipe.yaml:6:\d+: .*Extra inputs"),
    ],
)
def test_a_wrong_recipe_is_answered_with_line_and_rule(tmp_path, old, new, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_recipe(path)
