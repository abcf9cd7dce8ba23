"""A draft, head or exit says its kept ids, and the tokens of the prompt."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.models.vocabulary import OutputRows

TARGET = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
KEPT = torch.arange(0, 40, 3)
PROMPTS = st.lists(st.integers(0, 39), max_size=20)


def rows():
    return OutputRows(KEPT, TARGET[KEPT], TARGET)


@given(prompt=PROMPTS, earlier=PROMPTS)
def test_every_id_of_vocabulary_and_prompt_is_said_once_with_the_targets_own_row(prompt, earlier):
    output = rows()
    output.add_prompt_tokens(earlier)
    output.add_prompt_tokens(prompt)
    ids = output.ids.tolist()
    assert ids[: len(KEPT)] == KEPT.tolist()
    assert ids[len(KEPT) :] == sorted(set(prompt) - set(KEPT.tolist()))
    assert torch.equal(output.rows, TARGET[ids])
    output.add_prompt_tokens([])
    assert torch.equal(output.rows, TARGET[KEPT]), "kept rows are never changed"


def test_rows_that_are_no_copies_of_the_targets_stay_alone():
    own = torch.randn(len(KEPT), 6)
    output = OutputRows(KEPT, own)
    output.add_prompt_tokens([1, 2, 4])
    assert output.ids.tolist() == KEPT.tolist()
    assert torch.equal(output.rows, own)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_in_the_dtype_of_the_states_in_the_order_of_the_ids(dtype):
    output = rows()
    output.add_prompt_tokens([1, 7])
    states = torch.randn(2, 3, 6).to(dtype)
    logits = output.logits(states)
    assert (logits.shape, logits.dtype) == ((2, 3, len(KEPT) + 2), dtype)
    wanted = states.float() @ TARGET.T[:, output.ids]
    torch.testing.assert_close(logits.float(), wanted, atol=0.1 if dtype == torch.bfloat16 else 1e-5, rtol=0)
