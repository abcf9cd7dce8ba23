"""The reference computes one conversation at a time, unpadded, and its loss position by position."""

import math
from itertools import pairwise

import pytest
import torch

from runtime.models.decoder import rms_norm
from tests.runtime import plain
from training.recipe import DraftRecipe, Optimisation
from training.tasks import chain_draft as draft_module
from training.tasks.chain_draft import DraftTask, initial_draft

KEPT = torch.arange(0, 61, 2)
STATE_LAYERS = (1, 3)


def recipe(**changes):
    settings = {
        "source_layers": (1, 2, 4),
        "vocab_size": len(KEPT),
        "exit_features": (1, 3),
        "feature_layer": 1,
        "num_held_out": 4,
        "windows": (3,),
        "optimisation": Optimisation(num_tokens=50),
    }
    return DraftRecipe(**settings | changes)


def logits_alone(task, index, present):
    """The draft's logits [answer tokens, kept] on one conversation, in bfloat16 like the task's."""
    row = task.states.conversations[index]
    features = torch.zeros(1, len(row.ids), 32, dtype=torch.bfloat16)
    for position in range(1, len(row.ids)):
        if present[position]:
            hidden = [task.states.rows(layer, index)[position - 1] for layer in (1, 3)]
            features[0, position] = torch.cat([rms_norm(x, torch.ones(16, dtype=x.dtype), 1e-5) for x in hidden])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        x = plain.draft_states(task.module, row.ids, features, torch.bfloat16)
        return task.module.decoder.lm_head(x[len(row.prompt) - 1 : -1])


def teacher_logits(task, index):
    row = task.states.conversations[index]
    final = task.states.rows(4, index)[len(row.prompt) - 1 : len(row.ids) - 1]
    return final @ task.states.target.lm_head.weight[KEPT].to(torch.bfloat16).T


def test_the_initial_draft_is_made_of_the_targets_layers_embedding_and_head(target):
    draft = initial_draft(recipe(), target, KEPT)
    for own, source in zip(draft.decoder.layers, (0, 1, 3), strict=True):
        for name, weight in own.named_parameters():
            assert torch.equal(weight, dict(target.layers[source].named_parameters())[name])
    assert torch.equal(draft.decoder.final_norm, target.final_norm)
    assert torch.equal(draft.decoder.lm_head.weight, target.lm_head.weight[KEPT])
    assert not draft.fuse.weight.any(), "features change nothing before training"
    trained = {name for name, weight in draft.named_parameters() if weight.requires_grad}
    assert not [name for name in trained if "embedding" in name or "head" in name]


def test_the_draft_trains_in_float32_whatever_the_target_is_in(target):
    lower = type(target)(target.config)
    lower.load_state_dict(target.state_dict())
    draft = initial_draft(recipe(), lower.to(torch.bfloat16), KEPT)
    assert {weight.dtype for weight in draft.parameters()} == {torch.float32}
    assert torch.equal(draft.decoder.embedding.weight, target.embedding.weight)


def test_the_loss_is_the_mean_cross_entropy_to_the_target_at_answer_positions(target, states, monkeypatch):
    task = DraftTask(recipe(), KEPT, states)
    torch.nn.init.normal_(task.module.fuse.weight, std=0.3)
    batch = [0, 3, 4]
    width = max(len(states.conversations[index].ids) for index in batch)
    present = torch.rand(3, width, generator=torch.Generator().manual_seed(0)) < 0.5
    monkeypatch.setattr(draft_module, "random_presence", lambda *_: present)
    losses = []
    for at, index in enumerate(batch):
        student, teacher = logits_alone(task, index, present[at]), teacher_logits(task, index)
        for ours, theirs in zip(student.float().tolist(), teacher.float().tolist(), strict=True):
            total = sum(math.exp(x) for x in theirs)
            normaliser = math.log(sum(math.exp(x) for x in ours))
            losses.append(sum(math.exp(x) / total * (normaliser - y) for x, y in zip(theirs, ours, strict=True)))
    loss, num_tokens = task.loss(batch, torch.Generator())
    assert num_tokens == len(losses) == sum(len(states.conversations[index].answer) for index in batch)
    assert float(loss.detach()) == pytest.approx(sum(losses) / len(losses), rel=0.02)


def test_held_out_agreement_counts_the_tokens_the_target_would_have_said(target, states):
    task = DraftTask(recipe(), KEPT, states)
    torch.nn.init.normal_(task.module.fuse.weight, std=0.3)
    patterns = {
        "agreement_without_features": lambda _: False,
        "agreement_with_features": lambda _: True,
        "agreement_alternating_features": lambda position: position % 2 == 0,
    }
    found = task.evaluate()
    assert found.keys() == patterns.keys()
    for name, is_present in patterns.items():
        hits = []
        for index in range(10, 14):
            present = [is_present(position) for position in range(len(states.conversations[index].ids))]
            agree = logits_alone(task, index, present).argmax(-1) == teacher_logits(task, index).argmax(-1)
            hits += agree.tolist()
        assert found[name] == pytest.approx(sum(hits) / len(hits), abs=1.5 / len(hits)), name


def test_features_are_dropped_in_runs_and_from_some_conversations_altogether():
    present = draft_module.random_presence(torch.Size((400, 60)), 0.25, torch.Generator().manual_seed(0))
    without = [row for row in present.tolist() if not any(row)]
    assert 60 < len(without) < 140
    for row in present.tolist():
        if any(row):
            edges = [at for at in range(1, 60) if row[at] != row[at - 1]]
            lengths: dict[bool, list[int]] = {True: [], False: []}
            for earlier, later in pairwise(edges):
                lengths[row[earlier]].append(later - earlier)
            assert max(lengths[False], default=0) <= 4
            assert max(lengths[True], default=0) <= 16
    share = sum(map(sum, present.tolist())) / (60 * (400 - len(without)))
    assert 0.7 < share < 0.85


def test_the_finished_draft_is_judged_as_it_lies_on_disk(target, states, tmp_path):
    task = DraftTask(recipe(), KEPT, states)
    judgement = task.finish(tmp_path / "draft", target_name="tiny", metadata={}, progress=lambda *_: None)
    assert [(result.num_tokens, result.with_features) for result in judgement.acceptance] == [(3, False), (3, True)]
    greedy = [row for row in states.conversations[10:] if row.temperature == 0]
    assert 0 < len(greedy) < 4
    found = judgement.acceptance[0]
    assert round(found.mean_acceptance_length * found.num_rounds) == sum(len(row.answer) for row in greedy)
