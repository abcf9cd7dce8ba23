"""The reference drafts after one prefix at a time, each time over the whole text again, with no cache."""

import pytest
import torch

from runtime.drafters.language_model import rollouts
from runtime.drafters.language_model.rollouts import rollouts_everywhere
from runtime.models.decoder import causal_mask
from tests.tiny_models import tiny_draft, tiny_target

IDS = [5, 17, 3, 44, 8, 8, 60, 1, 29, 12, 33]


def draft_one_by_one(draft, prefix, num_tokens, num_alternatives, features):
    """Drafted ids and the best ids at each place, recomputed from scratch for every token."""
    text = list(prefix)
    ranked = []
    for _ in range(num_tokens):
        rows = None
        if features is not None:
            rows = torch.zeros(1, len(text), features.shape[-1])
            for position in range(1, len(prefix)):
                rows[0, position] = features[position - 1]
        x = draft(
            torch.tensor([text]),
            positions=torch.arange(len(text)),
            mask=causal_mask(len(text), torch.float32),
            features_BTE=rows,
        )
        logits = (draft.output.rows @ x[0, -1]).tolist()
        order = sorted(range(len(logits)), key=lambda token: -logits[token])
        best = [int(draft.output.ids[token]) for token in order[:num_alternatives]]
        ranked.append(best)
        text.append(best[0])
    return text[len(prefix) :], ranked


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
        tokens, ranked = draft_one_by_one(draft, IDS[:length], num_tokens, num_alternatives, features)
        assert found.tokens[row].tolist() == tokens
        assert found.alternatives[row].tolist() == ranked


def test_a_draft_with_features_can_do_without_them_and_then_drafts_otherwise() -> None:
    draft = tiny_draft(tiny_target(), exit_features=(1, 3), feature_layer=1)
    features = torch.randn(len(IDS), 32, generator=torch.Generator().manual_seed(0))
    without, with_them = (
        rollouts_everywhere(draft, IDS, start=2, num_tokens=3, num_alternatives=1, features_TE=given).tokens
        for given in (None, features)
    )
    assert without[4].tolist() == draft_one_by_one(draft, IDS[:6], 3, 1, None)[0]
    assert not torch.equal(without, with_them)


def test_long_texts_are_drafted_in_blocks_with_the_same_result(monkeypatch) -> None:
    draft = tiny_draft(tiny_target())
    whole = rollouts_everywhere(draft, IDS, start=1, num_tokens=3, num_alternatives=2, features_TE=None)
    monkeypatch.setattr(rollouts, "_BLOCK_ROWS", 3)
    blocks = rollouts_everywhere(draft, IDS, start=1, num_tokens=3, num_alternatives=2, features_TE=None)
    assert torch.equal(whole.alternatives, blocks.alternatives)


@pytest.mark.parametrize("start", [0, len(IDS)])
def test_there_is_no_draft_without_a_prefix_and_none_after_the_last_token(start) -> None:
    with pytest.raises(ValueError, match=f"start {start} is outside 1..10"):
        rollouts_everywhere(
            tiny_draft(tiny_target()), IDS, start=start, num_tokens=1, num_alternatives=1, features_TE=None
        )
