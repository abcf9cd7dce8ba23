from itertools import pairwise

import pytest
import torch

from runtime.drafters.registry import find_drafter, shipped_names
from runtime.storage.weight_folder import WEIGHTS_FILE
from tests.runtime import plain
from tests.tiny_models import tiny_draft, tiny_target
from training.data.states import Conversation
from training.judging.card import TEXT_FILE, read_card
from training.judging.drafter_acceptance import AgreementCount, HeldOutAcceptance, accepted_by_round, judge_draft


def test_a_round_starts_where_the_last_one_ended():
    # round 1 at place 0: 2 accepted and a bonus; round 2 at 3: 0 and a correction; round 3 at 4: 1
    assert accepted_by_round([2, 9, 9, 0, 1], 4) == [2, 0, 1]
    assert accepted_by_round([2, 0, 3, 0, 1], 1) == [1, 1, 1]


def test_figures_follow_their_definitions():
    lengths = [[3, 9, 9, 9, 0, 1, 9], [3, 9, 9, 9]]  # rounds accept 3, 0, 1 and 3
    result = HeldOutAcceptance.of(lengths, 3, with_features=False)
    assert result.num_rounds == 4
    assert result.mean_acceptance_length == pytest.approx(11 / 4)
    assert result.conditional_acceptance_rate == pytest.approx((3 / 4, 2 / 3, 1.0), abs=1e-4)


def test_no_round_gives_no_figure():
    result = HeldOutAcceptance.of([], 2, with_features=False)
    assert result.mean_acceptance_length != result.mean_acceptance_length
    assert result.conditional_acceptance_rate == ()


def play(draft, prompt, answer, window):
    """Accepted tokens of each round, drafting token by token from the committed text."""
    committed, accepted = list(prompt), []
    full = [*prompt, *answer]
    while len(committed) < len(full):
        draft.output.add_prompt_tokens(prompt)
        text = [*committed, *plain.draft_text(draft, committed, window)[0]]
        count = 0
        while len(committed) + count < len(full) and count < window:
            if text[len(committed) + count] != full[len(committed) + count]:
                break
            count += 1
        accepted.append(count)
        committed = full[: len(committed) + count + 1]
    return accepted


def test_a_draft_is_judged_as_if_rounds_were_played_one_by_one():
    draft = tiny_draft(tiny_target())
    prompts = ((3, 9), (17, 5, 5, 40), (8,))
    conversations = []
    for index, prompt in enumerate(prompts):
        answer: list[int] = []
        while len(answer) < 12:  # half of the tokens are the draft's own, so that some are accepted
            (own,), _ = plain.draft_text(draft, [*prompt, *answer], 1)
            answer.append(own if (len(answer) + index) % 4 else (own + 1) % 61)
        conversations.append(Conversation(prompt, tuple(answer)))
    found = judge_draft(draft, conversations, [0, 2], windows=(2, 4), features=None)
    for result in found:
        expected = [play(draft, *conversations[index][:2], result.num_tokens) for index in (0, 2)]
        accepted = expected[0] + expected[1]
        assert result.num_rounds == len(accepted)
        assert result.mean_acceptance_length == pytest.approx(24 / len(accepted), abs=1e-4)
        reached = [sum(count >= place for count in accepted) for place in range(result.num_tokens + 1)]
        rates = [now / before for before, now in pairwise(reached) if before]
        assert result.conditional_acceptance_rate == pytest.approx(rates, abs=1e-4)
    assert found[1].mean_acceptance_length > found[0].mean_acceptance_length > 1.0


def test_agreement_is_counted_over_all_batches():
    scores = 9.0 - torch.arange(9.0)
    best_is_0, best_is_1 = scores, scores[[1, 0, *range(2, 9)]]
    count = AgreementCount()
    count.add(1, torch.stack([best_is_0, best_is_1]), torch.tensor([0, 1]))
    count.add(2, torch.stack([best_is_1, best_is_1]), torch.tensor([0, 1]))
    for head in (1, 2):
        count.add(head, torch.stack([best_is_0]), torch.tensor([4]))
    figures = count.figures("agreement_head")
    assert [figures[f"agreement_head1_top{top_k}"] for top_k in (1, 3, 8)] == [2 / 3, 2 / 3, 1]
    assert [figures[f"agreement_head2_top{top_k}"] for top_k in (1, 3, 8)] == [1 / 3, 2 / 3, 1]
    assert count.shares == {1: {1: 2 / 3, 3: 2 / 3, 8: 1}, 2: {1: 1 / 3, 3: 2 / 3, 8: 1}}


TRAINED = [name for name in shipped_names() if (find_drafter(name) / WEIGHTS_FILE).is_file()]


@pytest.mark.parametrize("name", TRAINED)
def test_the_text_of_a_shipped_card_is_what_its_figures_give(name):
    folder = find_drafter(name)
    assert (folder / TEXT_FILE).read_text(encoding="utf-8") == read_card(folder).text
