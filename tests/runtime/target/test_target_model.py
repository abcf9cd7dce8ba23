"""The target commits what it would commit without cache, windows and exits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from decoding.errors import LaneError
from decoding.messages import NO_WINDOW, Window
from runtime.target import target_model
from runtime.target.early_exits import ExitHeads
from runtime.target.exit_adapter import ExitAdapter
from runtime.target.target_model import TargetModel
from runtime.verification.rules import Sampling
from tests.runtime import plain
from tests.runtime.tree_doubles import tree_around
from tests.tiny_models import VOCAB_SIZE, tiny_adapters, tiny_target

PROMPT = [5, 17, 3, 44, 8]
CAPACITY = 100


def begin(decoder, prompt=PROMPT, heads=None, **options):
    target = TargetModel.of(decoder, heads)
    target.prefill(prompt, capacity=CAPACITY, **options)
    return target


def test_logits_that_are_not_on_the_host_give_the_same_text_and_no_token_where_they_are_no_numbers(monkeypatch):
    monkeypatch.setattr(target_model, "is_on_host", lambda _: False)
    decoder = tiny_target()
    target, text = begin(decoder), plain.continue_text(decoder, PROMPT, 20)
    assert [target.verify(NO_WINDOW).next_token for _ in range(20)] == text
    poisoned = torch.full((1, 1, VOCAB_SIZE), float("nan"))
    monkeypatch.setattr(target.backend, "logits", lambda _: poisoned)
    with pytest.raises(LaneError, match="the logits of a model hold nan: none is the best"):
        target.verify(NO_WINDOW)


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 5),
    prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6),
    lengths=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8),
    exit_layer=st.one_of(st.none(), st.integers(1, 3)),
    rule=st.sampled_from(["greedy", "match"]),
)
def test_any_windows_give_the_same_text(seed, prompt, lengths, exit_layer, rule):
    """Windows that agree with the text for a while and then do not, with and without an exit."""
    decoder = tiny_target(seed)
    sampling = Sampling(rule, 0.8, seed)
    text = plain.continue_text(decoder, prompt, 7 * len(lengths) + 6, sampling)
    target = begin(decoder, prompt, sampling=sampling)
    decided: list[int] = []
    for right, length in lengths:
        expected = text[len(decided) :][:length]
        window = Window(tuple(token if i < right else (token + 1) % VOCAB_SIZE for i, token in enumerate(expected)))
        if exit_layer is None:
            verdict = target.verify(window)
        else:
            target.prefix(window, exit_layer, 3)
            verdict = target.suffix()
        assert verdict.num_accepted == min(right, length)
        decided += [*window.tokens[: verdict.num_accepted], verdict.next_token]
        assert target.cache.cursor == len(prompt) + len(decided) - 1
    assert decided == text[: len(decided)]


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 1000),
    prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6),
    trees=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), min_size=1, max_size=6),
    rule=st.sampled_from(["greedy", "match"]),
)
def test_any_trees_give_the_same_text_and_the_features_of_its_rows(seed, prompt, trees, rule):
    decoder, rng = tiny_target(seed % 4), np.random.default_rng(seed)
    sampling = Sampling(rule, 0.8, seed)
    text = plain.continue_text(decoder, prompt, 6 * len(trees), sampling)
    layers = (2, 4)
    features = plain.features(decoder, [*prompt, *text], layers)
    target = begin(decoder, prompt, sampling=sampling, feature_layers=layers)
    decided: list[int] = []
    for num_right, num_wrong in trees:
        window = tree_around(text[len(decided) :], rng, num_right=num_right, num_wrong=num_wrong)
        verdict = target.verify(window)
        assert verdict.num_accepted == num_right
        first = len(prompt) + len(decided) - 1
        assert torch.allclose(verdict.features, features[first : first + num_right + 1], atol=1e-4)
        decided += [*window.accepted(verdict), verdict.next_token]
        assert target.cache.cursor == len(prompt) + len(decided) - 1
    assert decided == text[: len(decided)]


def test_the_exit_names_what_its_layer_says_under_the_reduced_vocabulary():
    decoder = tiny_target()
    kept = torch.arange(0, VOCAB_SIZE, 3)
    adapters = tiny_adapters(decoder, (2,))
    window = Window((7, 9))
    for heads in (None, ExitHeads(adapters=adapters, kept_ids=kept)):
        signal = begin(decoder, heads=heads).prefix(window, 2, 4)
        x = plain.hidden_states(decoder, [*PROMPT, 7, 9], layers=[2])[0]
        logits = decoder.logits(adapters[2](x) if heads else x)[-3:]
        new = sorted(set(PROMPT) - set(kept.tolist()))
        ids = torch.cat([kept, torch.tensor(new)]) if heads else torch.arange(VOCAB_SIZE)
        expected = logits[:, ids].log_softmax(-1).sort(descending=True)
        assert signal.candidates == tuple(map(tuple, ids[expected.indices[:, :4]].tolist()))
        assert torch.allclose(torch.tensor(signal.log_probs), expected.values[:, :4], atol=1e-5)
        assert signal.features is None


@pytest.mark.parametrize("layers", [(1,), (1, 3), (2, 4)])
def test_features_belong_to_the_rows_that_were_read(layers):
    decoder = tiny_target()
    target = TargetModel.of(decoder)
    text = [*PROMPT, *plain.continue_text(decoder, PROMPT, 8)]
    expected = plain.features(decoder, text, layers)
    of_prompt = target.prefill(PROMPT, capacity=CAPACITY, feature_layers=layers)
    assert torch.allclose(of_prompt, expected[: len(PROMPT) - 1], atol=1e-5)
    verdict = target.verify(Window((text[5], text[6], (text[7] + 1) % VOCAB_SIZE)))
    assert verdict.num_accepted == 2
    assert torch.allclose(verdict.features, expected[4:7], atol=1e-5)
    signal = target.prefix(Window((text[8],)), max(layers), 2)
    assert torch.allclose(signal.features, expected[7:9], atol=1e-5)


def test_raw_features_are_the_states_as_the_layers_left_them():
    """Layer 4 is the last: its state before the final norm."""
    decoder = tiny_target()
    target = TargetModel.of(decoder)
    text = [*PROMPT, *plain.continue_text(decoder, PROMPT, 2)]
    expected = plain.hidden_states(decoder, text, layers=[1, 4]).transpose(0, 1).flatten(-2)
    of_prompt = target.prefill(PROMPT, capacity=CAPACITY, feature_layers=(1, 4), raw_features=True)
    assert torch.allclose(of_prompt, expected[:4], atol=1e-4)
    assert torch.allclose(target.verify(Window((text[5],))).features, expected[4:6], atol=1e-4)
    assert torch.allclose(decoder.logits(expected[4:5, 16:]).argmax(-1), torch.tensor(text[5]))


def test_a_prompt_of_one_token_has_no_features_yet():
    target = TargetModel.of(tiny_target())
    assert target.prefill([4], capacity=CAPACITY, feature_layers=(1, 2)).shape == (0, 32)


def test_a_long_prompt_is_read_in_pieces():
    decoder = tiny_target(max_position=1200)
    prompt = [(7 * place) % VOCAB_SIZE for place in range(1100)]
    target = TargetModel.of(decoder)
    found = target.prefill(prompt, capacity=1110, feature_layers=(3,))
    assert torch.allclose(found, plain.features(decoder, prompt, (3,))[:-1], atol=1e-4)
    assert target.verify(NO_WINDOW).next_token == plain.continue_text(decoder, prompt, 1)[0]


def test_a_new_sequence_forgets_the_old_one():
    decoder = tiny_target()
    target = begin(decoder)
    target.prefix(Window((3, 4)), 2, 2)
    target.prefill([9, 9, 1], capacity=CAPACITY + 50)
    assert [target.verify(NO_WINDOW).next_token for _ in range(5)] == plain.continue_text(decoder, [9, 9, 1], 5)


def test_an_untrained_adapter_changes_nothing():
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ExitAdapter(16, 8, 1e-5)(x), x)


def test_an_adapter_adds_a_residual_mlp_to_an_affine_map():
    torch.manual_seed(0)
    adapter = ExitAdapter(4, 3, 1e-5).requires_grad_(requires_grad=False)
    for parameter in adapter.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(4)
    y = adapter.affine.weight @ x + adapter.affine.bias
    unit = y / (y.square().mean() + 1e-5).sqrt() * adapter.norm
    inner = adapter.up.weight @ unit
    expected = y + adapter.down.weight @ (inner * inner.sigmoid())
    assert torch.allclose(adapter(x), expected, atol=1e-5)


def test_one_token_at_a_time_is_plain_decoding():
    decoder = tiny_target()
    target = begin(decoder)
    tokens = [target.verify(NO_WINDOW).next_token for _ in range(20)]
    assert tokens == plain.continue_text(decoder, PROMPT, 20)
    assert len(set(tokens)) > 5
