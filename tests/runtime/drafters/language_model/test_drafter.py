"""Rollouts, stepwise and in branches, propose what the draft says about a text read from scratch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.messages import ExitSignal
from decoding.schedule import Schedule
from runtime.drafters.language_model.branch_set import BranchSet
from runtime.drafters.language_model.draft_passes import Proposer
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.language_model.folder import StreamConfig
from runtime.verification.rules import Sampling
from tests import tiny_heads
from tests.runtime import plain
from tests.tiny_models import VOCAB_SIZE, tiny_draft, tiny_target

PROMPT = [5, 17, 3, 44, 8]
FEATURE_LAYERS = (1, 3)


def speculative(num_tokens, **options):
    return Schedule(method="speculative", target_lane="t", draft_lane="d", num_speculative_tokens=num_tokens, **options)


def mirror(num_tokens, **options):
    return Schedule(method="mirror", target_lane="t", draft_lane="d", num_speculative_tokens=num_tokens, **options)


def begin(model, schedule, prompt=PROMPT, *, sampling=Sampling(), features_TE=None):  # noqa: B008
    drafter = Drafter(model)
    drafter.prefill(prompt, schedule=schedule, capacity=len(prompt) + 60, sampling=sampling, features_TE=features_TE)
    return drafter


def run(steps):
    """The rows of every step, and the window."""
    window, rows = tiny_heads.run(steps)
    return rows, window


def draft_model(*, with_features=False, seed=0):
    return tiny_draft(tiny_target(seed), exit_features=FEATURE_LAYERS if with_features else (), feature_layer=1)


def made_up_features(length, width=32):
    return torch.randn(length, width, generator=torch.Generator().manual_seed(length))


@given(
    prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6),
    num_tokens=st.integers(1, 5),
    outcomes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, VOCAB_SIZE - 1)), max_size=5),
)
@settings(deadline=None, max_examples=15)
def test_rollouts_follow_the_committed_text(prompt, num_tokens, outcomes):
    model = draft_model()
    drafter = begin(model, speculative(num_tokens), prompt)
    text = list(prompt)
    rows, window = run(drafter.rollout())
    assert rows == [1] * num_tokens
    for accepted, token in outcomes:
        num_accepted = min(accepted, num_tokens)
        own = window.tokens[num_accepted] if num_accepted < num_tokens else None
        next_token = (token + 1) % VOCAB_SIZE if token == own else token
        committed = [*window.tokens[:num_accepted], next_token]
        text += committed
        rows, window = run(drafter.rollout(committed))
        assert rows == [2 if num_accepted == num_tokens else 1] + [1] * (num_tokens - 1)
        assert list(window.tokens) == plain.draft_text(model, text, num_tokens)[0]


def test_features_are_fed_with_the_position_after_them():
    model = draft_model(with_features=True)
    features = made_up_features(20)
    drafter = begin(model, speculative(3, exit_features=True), features_TE=features[:4])
    rows, window = run(drafter.rollout())
    assert rows == [1, 1, 1]
    assert list(window.tokens) == plain.draft_text(model, PROMPT, 3, features_TE=features)[0]
    assert list(window.tokens) != plain.draft_text(model, PROMPT, 3)[0]
    text = [*PROMPT, *window.tokens[:2], 11]
    rows, window = run(drafter.rollout(text[5:], features[4:7]))
    assert rows == [3, 1, 1]
    assert list(window.tokens) == plain.draft_text(model, text, 3, features_TE=features)[0]
    text += [*window.tokens, 23]
    rows, window = run(drafter.rollout(text[8:], features[7:11]))
    assert rows == [4, 1, 1]
    assert list(window.tokens) == plain.draft_text(model, text, 3, features_TE=features)[0]


def test_the_first_token_of_a_text_has_no_feature():
    model = draft_model(with_features=True)
    drafter = begin(model, speculative(2, exit_features=True), [7], features_TE=made_up_features(0))
    assert list(run(drafter.rollout())[1].tokens) == plain.draft_text(model, [7], 2)[0]


def test_alternatives_are_the_drafts_best_ids_in_order():
    model = draft_model()
    drafter = begin(model, mirror(3, root_source="draft", draft_top_k=4))
    _, window = run(drafter.rollout())
    tokens, ranked = plain.draft_text(model, PROMPT, 3)
    assert list(window.tokens) == tokens
    assert [list(ids) for ids in window.alternatives] == [ids[:5] for ids in ranked]


def test_a_sampled_draft_sends_what_it_sampled_from():
    model = draft_model()
    sampling = Sampling("ratio", 0.9, seed=4)
    _, window = run(begin(model, speculative(4), sampling=sampling).rollout())
    assert len(window.distributions) == 4
    for token, candidates in zip(window.tokens, window.distributions, strict=True):
        assert token in candidates.tokens
        assert sum(candidates.probabilities) == pytest.approx(1.0)
        assert set(candidates.tokens) == {*model.kept_ids.tolist(), *PROMPT}  # fewer than 64: all of them


def test_sampled_tokens_are_distributed_as_sent():
    output, hidden_1D = draft_model().output, torch.randn(1, 16, generator=torch.Generator().manual_seed(0))
    counts: dict[int, int] = {}
    for seed in range(3000):
        (proposal,) = Proposer(output, sampling=Sampling("ratio", 1.5, seed))(hidden_1D, [5])
        counts[proposal.token] = counts.get(proposal.token, 0) + 1
    expected = dict(zip(*proposal.distribution, strict=True))
    statistic = sum((counts.get(token, 0) - 3000 * p) ** 2 / (3000 * p) for token, p in expected.items())
    degrees = len(expected) - 1
    assert statistic < degrees + 3.5 * np.sqrt(2 * degrees) + 10


# Branches

ROOT_SOURCES = [
    {"root_source": "draft", "draft_top_k": 2},
    {"root_source": "exit", "exit_layer": 2, "exit_top_k": 2},
    {"root_source": "hybrid", "exit_layer": 2, "exit_top_k": 2, "draft_top_k": 1},
    {"root_source": "draft", "roots_per_row": (3, 0, 1)},
    {"root_source": "exit", "exit_layer": 2, "exit_top_k": 2, "exit_features": True},
]


def made_up_signal(num_rows, seed, features):
    rng = np.random.default_rng(seed)
    candidates = tuple(tuple(rng.permutation(VOCAB_SIZE)[:4].tolist()) for _ in range(num_rows))
    return ExitSignal(candidates, (), features)


SIZES = StreamConfig(num_streams=3, start_layer=1, rank=2)


def with_streams(draft, sizes=SIZES, seed=8):
    """Streams of random weights: right now and then, by chance."""
    draft.config = replace(draft.config, streams=sizes)
    streams = draft.add_streams()
    torch.manual_seed(seed)
    for weight in streams.trained.values():
        torch.nn.init.normal_(weight, std=0.05)
    draft.requires_grad_(requires_grad=False)
    return draft


def model_of(dtype, *, with_features, num_streams):
    model = draft_model(with_features=with_features)
    if num_streams:
        model = with_streams(model)
    if dtype is not torch.float32:
        model.to(dtype)
        model.share(tiny_target().to(dtype), model.kept_ids)
    tiny_heads.propose_the_same_after_every_prompt(model)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", ROOT_SOURCES, ids=lambda options: str(sorted(options.values(), key=str)))
@given(
    sizes=st.tuples(st.integers(1, 6), st.integers(0, 3)),
    steps=st.tuples(st.integers(0, 3), st.integers(0, 6)),
    choice=st.integers(0, 1000),
    rounds=st.integers(1, 3),
    sampling=st.sampled_from([Sampling(), Sampling("match", 0.8, 3), Sampling("ratio", 0.8, 3)]),
)
@settings(deadline=None, max_examples=8)
def test_a_branch_taken_at_any_moment_equals_a_fresh_rollout_without_streams(
    options, dtype, sizes, steps, choice, rounds, sampling
):
    """Its window, its alternatives, its distributions, and the keys it leaves behind, to the last bit."""
    (num_tokens, num_streams), (steps_before, steps_after) = sizes, steps
    if "roots_per_row" in options:
        options = options | {"roots_per_row": options["roots_per_row"][: num_tokens + 1]}
    schedule = mirror(num_tokens, draft_streams=num_streams, **options)
    with_features = schedule.exit_features
    model = model_of(dtype, with_features=with_features, num_streams=num_streams)
    features = made_up_features(90).to(dtype) if with_features else None

    def known(length):
        return features[:length] if with_features else None

    drafter = begin(model, schedule, sampling=sampling, features_TE=known(len(PROMPT) - 1))
    text = list(PROMPT)
    _, window = run(drafter.rollout())
    for round_ in range(rounds):
        branches = BranchSet(drafter, schedule)
        for _ in range(steps_before):
            if branches.has_work:
                branches.step()
        if schedule.uses_exit:
            row_features = features[len(text) - 1 :][: num_tokens + 1] if with_features else None
            branches.join(made_up_signal(num_tokens + 1, choice + round_, row_features))
        for _ in range(steps_after):
            if branches.has_work:
                branches.step()
        roots = [tuple(root) for root in branches._branches]
        outcomes = [*roots, *([] if (0, 59) in roots else [(0, 59)])]
        num_accepted, next_token = outcomes[(choice + round_) % len(outcomes)]
        hit, left = branches.take((num_accepted, next_token))
        assert hit == ((num_accepted, next_token) in roots)
        _, found = run(left)

        text += [*window.tokens[:num_accepted], next_token]
        plainly = schedule.model_copy(update={"draft_streams": 0})
        fresh = begin(model, plainly, text, sampling=sampling, features_TE=known(len(text) - 1))
        _, window = run(fresh.rollout())
        assert (found.tokens, found.alternatives) == (window.tokens, window.alternatives)
        assert found.distributions == window.distributions
        assert drafter.cached == fresh.cached == [*text, *window.tokens[:-1]]
        length = fresh.cache.cursor
        assert drafter.cache.cursor == length == len(fresh.cached)
        found, expected = (one.cache.memory.slots[..., :length, :] for one in (drafter, fresh))
        assert torch.equal(found, expected)


def steps_of(branches):
    rows = []
    while branches.has_work:
        rows.append(branches.step())
    return rows


def after_rollout(schedule, **options):
    model = draft_model(with_features=schedule.exit_features)
    drafter = begin(model, schedule, **options)
    run(drafter.rollout())
    return drafter


@pytest.mark.parametrize(
    ("options", "before", "rows"),
    [
        ({"root_source": "draft", "draft_top_k": 2}, [1, 8, 8, 8], None),
        ({"root_source": "exit", "exit_layer": 2, "exit_top_k": 2}, [1], [8, 8, 8]),
        ({"root_source": "exit", "exit_layer": 2, "exit_top_k": 2, "exit_features": True}, [], [3 + 8, 8, 8]),
    ],
    ids=["draft", "exit", "exit with features"],
)
def test_branches_start_with_their_roots_and_go_on_together(options, before, rows):
    """Those of the draft after the last drafted token, those of an exit after its message."""
    schedule = mirror(3, **options)
    features = made_up_features(4) if schedule.exit_features else None
    branches = BranchSet(after_rollout(schedule, features_TE=features), schedule)
    assert steps_of(branches) == before
    if rows is not None:
        branches.join(made_up_signal(4, 0, features))
        assert steps_of(branches) == rows


def test_hybrid_branches_of_the_exit_join_those_under_way():
    schedule = mirror(3, root_source="hybrid", exit_layer=2, exit_top_k=1, draft_top_k=1)
    branches = BranchSet(after_rollout(schedule), schedule)
    assert [branches.step(), branches.step()] == [1, 4]
    # candidates the draft cannot have named: it keeps even ids only
    branches.join(ExitSignal(((1, 3),) * 4))
    assert steps_of(branches) == [8, 8, 4]


def test_a_hit_before_the_end_is_finished_alone():
    schedule = mirror(4, root_source="draft", draft_top_k=1)
    branches = BranchSet(after_rollout(schedule), schedule)
    branches.step()
    branches.step()
    hit, steps = branches.take(next(iter(branches._branches)))
    assert (hit, run(steps)[0]) == (True, [1, 1, 1])


def test_a_miss_feeds_one_row_for_every_outcome_once_the_window_is_read():
    schedule = mirror(3, root_source="draft", draft_top_k=1)
    branches = BranchSet(after_rollout(schedule), schedule)
    branches.step()
    hit, steps = branches.take((3, 59))
    assert (hit, run(steps)[0]) == (False, [1, 1, 1])


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_every_step_proposes_before_it_is_over(num_tokens, monkeypatch):
    """A step's span is what lies between two yields: what is left for later is charged to the next step, or nobody."""
    drafter = begin(draft_model(), speculative(num_tokens))
    proposed = []
    propose = drafter.propose
    monkeypatch.setattr(drafter, "propose", lambda *given: proposed.append(given) or propose(*given))
    assert [len(proposed) for _ in drafter.rollout()] == [1, 2, 3][:num_tokens]


@pytest.mark.parametrize(
    ("roots", "most", "fewest"),
    [
        ({"root_source": "draft", "draft_top_k": 2}, 8, None),
        ({"root_source": "exit", "exit_layer": 2, "exit_top_k": 3}, 12, None),
        ({"root_source": "hybrid", "exit_layer": 2, "exit_top_k": 3, "draft_top_k": 2}, 20, 2),
    ],
)
def test_a_sequence_names_all_its_branches_and_with_both_sources_any_number_from_two(roots, most, fewest):
    """Draft and exit may name the same roots, so how many there are the text decides."""
    drafter, plans = Drafter(draft_model()), []
    drafter.backend.prepare = plans.append
    drafter.prepare(mirror(3, **roots), num_prompt=5, capacity=40)
    [plan] = plans
    assert (plan.num_branches, plan.least_branches) == (most, fewest)
