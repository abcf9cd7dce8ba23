"""Many prompts are answered at once, each row as if it were alone."""

import pytest
import torch

from tests.runtime import plain
from tests.tiny_models import EOS, VOCAB_SIZE, tiny_target
from training.text.batched_decoding import choose_tokens, decode_batch

PROMPTS = [[5, 9, 1], [7], [3, 3, 8, 20, 44, 12, 6], [50, 2, 31, 4], [60, 59]]


@pytest.mark.parametrize("seed", range(2))
def test_greedy_rows_say_what_each_prompt_alone_is_answered(seed):
    target = tiny_target(seed)
    free = [plain.continue_text(target, prompt, 12) for prompt in PROMPTS]
    stop_ids = {EOS, free[0][2], free[3][4]}
    found = decode_batch(
        target,
        PROMPTS,
        [0.0] * len(PROMPTS),
        top_p=1.0,
        stop_ids=stop_ids,
        max_new_tokens=12,
        generator=torch.Generator(),
    )
    assert found == [plain.continue_text(target, prompt, 12, eos=stop_ids) for prompt in PROMPTS]
    assert len({len(answer) for answer in found}) > 1, "some rows must outlive others"


def test_a_sampled_row_does_not_depend_on_when_the_others_stop():
    def sample(stop_ids):
        return decode_batch(
            tiny_target(),
            PROMPTS,
            [1.0] * len(PROMPTS),
            top_p=0.9,
            stop_ids=stop_ids,
            max_new_tokens=10,
            generator=torch.Generator().manual_seed(5),
        )

    free = sample(())
    stop_ids = {free[0][0], free[1][1]}
    for answer, uncut in zip(sample(stop_ids), free, strict=True):
        end = next((at + 1 for at, token in enumerate(uncut) if token in stop_ids), len(uncut))
        assert answer == uncut[:end]


def test_sampled_tokens_follow_the_distribution_cut_at_top_p():
    logits = torch.tensor([[2.0, 0.0, 1.0, -1.0]])
    count = 4000
    uniforms = (torch.arange(count) + 0.5) / count
    tokens = choose_tokens(logits.expand(count, -1), torch.full((count,), 2.0), uniforms, 0.8)
    weights = [2.718281828 ** (logit / 2.0) for logit in (2.0, 0.0, 1.0, -1.0)]
    # best first: tokens 0, 2, 1 reach 0.8 (0.455 + 0.276 + 0.168); token 3 is cut
    nucleus = {token: weights[token] / (weights[0] + weights[1] + weights[2]) for token in (0, 1, 2)}
    for token in range(4):
        share = float((tokens == token).float().mean())
        assert share == pytest.approx(nucleus.get(token, 0.0), abs=1e-3)


def test_each_row_has_its_own_temperature():
    logits = torch.randn(2, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    tokens = choose_tokens(logits, torch.tensor([0.0, 5.0]), torch.tensor([0.99, 0.99]), 1.0)
    assert tokens[0] == logits[0].argmax()
    assert tokens[1] != logits[1].argmax()
