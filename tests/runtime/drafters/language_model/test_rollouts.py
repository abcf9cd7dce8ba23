"""The reference drafts after one prefix at a time, each time over the whole text again, with no cache."""

import pytest
import torch

from runtime.drafters.language_model import rollouts
from runtime.drafters.language_model.rollouts import rollouts_everywhere
from tests.runtime import plain
from tests.tiny_models import tiny_draft, tiny_target

IDS = [5, 17, 3, 44, 8, 8, 60, 1, 29, 12, 33]


@pytest.mark.parametrize("with_features", [False, True])
@pytest.mark.parametrize(("start", "num_tokens", "num_alternatives"), [(1, 4, 3), (6, 1, 1), (10, 5, 2)])
def test_every_prefix_is_continued_as_if_it_were_alone(with_features, start, num_tokens, num_alternatives):
    draft = tiny_draft(tiny_target(), exit_features=(1, 3) if with_features else (), feature_layer=1)
    features = torch.randn(len(IDS), 32, generator=torch.Generator().manual_seed(0)) if with_features else None
    found = rollouts_everywhere(
        draft, IDS, start=start, num_tokens=num_tokens, num_alternatives=num_alternatives, features_TE=features
    )
    assert found.tokens.shape == (len(IDS) - start, num_tokens)
    for row, length in enumerate(range(start, len(IDS))):
        tokens, ranked = plain.draft_text(draft, IDS[:length], num_tokens, features_TE=features)
        assert found.tokens[row].tolist() == tokens
        assert found.alternatives[row].tolist() == [ids[:num_alternatives] for ids in ranked]


def test_a_draft_with_features_can_do_without_them_and_then_drafts_otherwise():
    draft = tiny_draft(tiny_target(), exit_features=(1, 3), feature_layer=1)
    features = torch.randn(len(IDS), 32, generator=torch.Generator().manual_seed(0))
    without, with_them = (
        rollouts_everywhere(draft, IDS, start=2, num_tokens=3, num_alternatives=1, features_TE=given).tokens
        for given in (None, features)
    )
    assert without[4].tolist() == plain.draft_text(draft, IDS[:6], 3)[0]
    assert (without != with_them).any()


def test_long_texts_are_drafted_in_blocks_with_the_same_result(monkeypatch):
    draft = tiny_draft(tiny_target())
    whole = rollouts_everywhere(draft, IDS, start=1, num_tokens=3, num_alternatives=2, features_TE=None)
    monkeypatch.setattr(rollouts, "_BLOCK_ROWS", 3)
    blocks = rollouts_everywhere(draft, IDS, start=1, num_tokens=3, num_alternatives=2, features_TE=None)
    assert (whole.alternatives == blocks.alternatives).all()


@pytest.mark.parametrize("start", [0, len(IDS)])
def test_there_is_no_draft_without_a_prefix_and_none_after_the_last_token(start):
    with pytest.raises(ValueError, match=f"start {start} is outside 1..10"):
        rollouts_everywhere(
            tiny_draft(tiny_target()), IDS, start=start, num_tokens=1, num_alternatives=1, features_TE=None
        )
