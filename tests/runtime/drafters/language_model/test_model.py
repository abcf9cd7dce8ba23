import pytest
import torch

from decoding.errors import ModelError
from runtime.arrays import normalise_features
from runtime.drafters.language_model.draft_passes import DraftConfig
from tests.runtime import plain
from tests.tiny_models import tiny_draft, tiny_target


def run(draft, features):
    return plain.draft_states(draft, [5, 9, 2, 40], features)


@pytest.mark.parametrize("feature_layer", [0, 1, 2])
def test_rows_of_zeros_and_no_features_are_the_same_thing(feature_layer):
    draft = tiny_draft(tiny_target(), exit_features=(1, 3), feature_layer=feature_layer)
    assert torch.equal(run(draft, None), run(draft, torch.zeros(1, 4, 32)))


def test_a_feature_reaches_its_own_position_and_later_ones_only():
    draft = tiny_draft(tiny_target(), exit_features=(1, 3), feature_layer=1)
    features = torch.zeros(1, 4, 32)
    features[0, 2] = 1.0
    changed = [bool((a != b).any()) for a, b in zip(run(draft, None), run(draft, features), strict=True)]
    assert changed == [False, False, True, True]


def test_features_are_brought_to_unit_scale_layer_by_layer():
    hidden = torch.tensor([[[3.0, -3.0], [0.5, 0.5]]])
    assert normalise_features(hidden, 1e-9).tolist() == [pytest.approx([1.0, -1.0, 1.0, 1.0])]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source_layers": ()}, "source_layers is empty"),
        ({"feature_layer": 2}, r"feature_layer 2 is outside 0\.\.1"),
        ({"feature_layer": -1}, r"feature_layer -1 is outside 0\.\.1"),
    ],
)
def test_a_draft_that_cannot_be_built_is_refused(changes, message):
    with pytest.raises(ModelError, match=message):
        DraftConfig(**{"source_layers": (1, 2), "vocab_size": 8} | changes)
