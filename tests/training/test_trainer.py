"""The task here is small and noisy on purpose: its loss draws random numbers, as dropping features does."""

import math

import pytest
import torch
from torch import nn

from decoding.errors import TrainingError
from training import trainer
from training.judging.card import CurvePoint
from training.recipe import Optimisation
from training.trainer import CHECKPOINT_FILE, CURVE_FILE, add_point, learning_rate, read_curve, train

SETTINGS = Optimisation(num_tokens=200, conversations_per_step=3, warmup_steps=4, seed=3)


class NoisyLine:
    """Learns y = 2x + 1 from 20 conversations of 1 to 5 answer tokens each."""

    num_conversations = 20

    def __init__(self):
        torch.manual_seed(0)
        self.module = nn.Linear(1, 1)
        self.batches = []

    def conversation_length(self, index):
        return 1 + index % 5

    def rate_share(self, name):
        return {"weight": 1.0, "bias": 0.5}[name]

    def loss(self, batch, generator):
        self.batches.append(batch)
        x = torch.tensor([[float(index)] for index in batch]) / 20 + 0.01 * torch.randn(1, generator=generator)
        num_tokens = sum(self.conversation_length(index) for index in batch)
        return ((self.module(x) - 2 * x - 1) ** 2).mean(), num_tokens

    def evaluate(self):
        return {"slope": float(self.module.weight.detach())}


def weights(task):
    return {name: parameter.tolist() for name, parameter in task.module.state_dict().items()}


@pytest.fixture
def uninterrupted(tmp_path):
    task = NoisyLine()
    report = train(task, SETTINGS, tmp_path / "whole")
    return task, report


def interrupt_at(step):
    def progress(report):
        if report.step == step:
            raise KeyboardInterrupt

    return progress


def test_training_learns(tmp_path):
    task = NoisyLine()
    train(task, Optimisation(num_tokens=4000, learning_rate=0.05), tmp_path)
    assert task.module.weight.item() == pytest.approx(2, abs=0.1)
    assert task.module.bias.item() == pytest.approx(1, abs=0.1)


def test_the_run_ends_with_the_first_batch_that_reaches_the_tokens_asked_for(uninterrupted):
    task, report = uninterrupted
    sizes = [sum(task.conversation_length(index) for index in batch) for batch in task.batches]
    assert sum(sizes[:-1]) < 200 <= sum(sizes) == report.num_tokens
    assert report.step == len(sizes)
    assert report.scores == task.evaluate()


def test_every_parameter_learns_at_its_share_of_the_rate(tmp_path):
    task, start = NoisyLine(), NoisyLine()
    task.rate_share = {"weight": 1.0, "bias": 0.25}.__getitem__
    train(task, Optimisation(num_tokens=1, warmup_steps=0, decay_fraction=0, weight_decay=0), tmp_path)
    # a first step of Adam is as long as the rate, whatever the gradient
    moved = [abs(getattr(task.module, name).item() - getattr(start.module, name).item()) for name in ("weight", "bias")]
    assert moved[1] == pytest.approx(0.25 * moved[0], rel=1e-3)


def test_every_epoch_sees_every_conversation_once_in_a_new_order(uninterrupted):
    batches = uninterrupted[0].batches
    epochs = [[index for batch in batches[at : at + 7] for index in batch] for at in (0, 7)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(20))] * 2
    assert epochs[0] != epochs[1]


def test_a_seed_may_be_a_time(tmp_path):
    task = NoisyLine()
    train(task, Optimisation(num_tokens=1, seed=20261128075600), tmp_path)
    assert task.batches


@pytest.mark.parametrize("steps", [(1,), (2, 5, 20)])
def test_an_interrupted_and_resumed_run_is_bitwise_the_uninterrupted_one(steps, tmp_path, uninterrupted):
    for step in steps:
        with pytest.raises(KeyboardInterrupt):
            train(NoisyLine(), SETTINGS, tmp_path, progress=interrupt_at(step), report_every_s=0, save_every_s=0)
    task = NoisyLine()
    report = train(task, SETTINGS, tmp_path, report_every_s=0, save_every_s=0)
    assert weights(task) == weights(uninterrupted[0])
    assert (report.step, report.num_tokens, report.loss) == (
        uninterrupted[1].step,
        uninterrupted[1].num_tokens,
        uninterrupted[1].loss,
    )


def test_a_run_that_is_stopped_in_its_evaluations_has_all_points_in_the_end(tmp_path):
    class Stopped(NoisyLine):
        num_evaluations = 0

        def evaluate(self):
            self.num_evaluations += 1
            if self.num_evaluations > evaluations_before:
                raise KeyboardInterrupt
            return super().evaluate()

    often = {"save_every_s": 0, "evaluate_every_tokens": 90}
    train(NoisyLine(), SETTINGS, tmp_path / "whole", **often)
    for evaluations_before in (0, 1, 1):  # noqa: B007 - the class above reads it
        with pytest.raises(KeyboardInterrupt):
            train(Stopped(), SETTINGS, tmp_path / "cut", **often)
    train(NoisyLine(), SETTINGS, tmp_path / "cut", **often)
    assert read_curve(tmp_path / "cut") == read_curve(tmp_path / "whole")
    assert len(read_curve(tmp_path / "whole")) == 3


def test_a_run_that_cannot_be_evaluated_goes_on_with_the_steps_it_has(tmp_path, uninterrupted):
    class Failing(NoisyLine):
        def evaluate(self):
            raise OSError("the device is full")

    failing, task = Failing(), NoisyLine()
    with pytest.raises(OSError, match="device is full"):
        train(failing, SETTINGS, tmp_path, evaluate_every_tokens=90)
    assert len(failing.batches) > 1
    train(task, SETTINGS, tmp_path)
    assert [*failing.batches, *task.batches] == uninterrupted[0].batches


def test_a_finished_run_is_only_evaluated_again(tmp_path, uninterrupted):
    task = NoisyLine()
    report = train(task, SETTINGS, tmp_path / "whole")
    assert task.batches == []
    assert weights(task) == weights(uninterrupted[0])
    assert report.scores == uninterrupted[1].scores
    assert report.num_tokens == uninterrupted[1].num_tokens


class Diverging(NoisyLine):
    """Its loss, or the gradient alone, stops being finite after six steps."""

    def __init__(self, *, in_gradient):
        super().__init__()
        self.in_gradient = in_gradient

    def loss(self, batch, generator):
        loss, num_tokens = super().loss(batch, generator)
        if len(self.batches) > 6:
            loss = (loss - loss.detach()).sqrt() if self.in_gradient else loss * math.nan
        return loss, num_tokens


@pytest.mark.parametrize(("in_gradient", "what"), [(False, "loss is nan"), (True, "gradient norm is inf")])
def test_a_diverging_run_stops_and_keeps_the_last_good_checkpoint(tmp_path, uninterrupted, in_gradient, what):
    with pytest.raises(
        TrainingError, match=rf"the {what} at step 6; the last checkpoint, .*{CHECKPOINT_FILE}, is kept"
    ):
        train(Diverging(in_gradient=in_gradient), SETTINGS, tmp_path, save_every_s=0)
    task = NoisyLine()
    train(task, SETTINGS, tmp_path)
    assert task.batches[0] == uninterrupted[0].batches[6]
    assert weights(task) == weights(uninterrupted[0])


def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path, uninterrupted, monkeypatch):
    saves = []
    original = trainer.replace_file

    def fill_up(path, content):
        if len(saves) == 4:
            raise OSError(28, "No space left on device")
        saves.append(path)
        original(path, content)

    monkeypatch.setattr(trainer, "replace_file", fill_up)
    with pytest.raises(TrainingError, match="checkpoint could not be written .*No space left.*previous one is kept"):
        train(NoisyLine(), SETTINGS, tmp_path, save_every_s=0)
    monkeypatch.undo()
    task = NoisyLine()
    train(task, SETTINGS, tmp_path)
    assert task.batches[0] == uninterrupted[0].batches[4]
    assert weights(task) == weights(uninterrupted[0])


def test_a_full_disk_from_the_beginning_keeps_no_checkpoint_and_says_so(tmp_path, full_disk):
    full_disk(trainer, "replace_file")
    with pytest.raises(TrainingError, match="could not be written .*No space left.*no checkpoint was written yet"):
        train(NoisyLine(), SETTINGS, tmp_path)


def test_a_damaged_checkpoint_and_one_of_another_model_are_refused(tmp_path, uninterrupted):
    path = tmp_path / "whole" / CHECKPOINT_FILE
    wider = NoisyLine()
    wider.module = nn.Linear(2, 1)
    with pytest.raises(TrainingError, match=f"{CHECKPOINT_FILE}: damaged, or of another recipe .*weight has shape"):
        train(wider, SETTINGS, tmp_path / "whole")
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(TrainingError, match=f"{CHECKPOINT_FILE}: damaged, .*delete it to start again"):
        train(NoisyLine(), SETTINGS, tmp_path / "whole")


def test_the_learning_rate_warms_up_stays_and_falls_to_its_end():
    settings = Optimisation(num_tokens=1000, learning_rate=2.0, warmup_steps=9, decay_fraction=0.5, final_fraction=0.1)
    assert learning_rate(settings, 0, 0) == pytest.approx(0.2)
    assert learning_rate(settings, 9, 100) == learning_rate(settings, 80, 500) == pytest.approx(2.0)
    assert learning_rate(settings, 90, 750) == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert learning_rate(settings, 99, 1000) == pytest.approx(0.2)


def test_a_longer_run_begins_like_a_shorter_one():
    short, long = (Optimisation(num_tokens=count) for count in (1000, 3000))
    for step, num_tokens in ((0, 0), (50, 300), (200, 700)):
        assert learning_rate(short, step, num_tokens) == learning_rate(long, step, num_tokens)


def test_points_of_a_curve_come_back_and_those_after_a_resumed_one_are_written_anew(tmp_path):
    assert read_curve(tmp_path) == ()
    for num_tokens in (100, 200, 300):
        add_point(tmp_path, num_tokens, {"agreement": 0.123456})
    add_point(tmp_path, 200, {"agreement": 0.2})
    assert read_curve(tmp_path) == (
        CurvePoint(num_tokens=100, scores={"agreement": 0.1235}),
        CurvePoint(num_tokens=200, scores={"agreement": 0.2}),
    )


def test_a_curve_that_is_damaged_or_cannot_be_written_is_named(tmp_path):
    (tmp_path / CURVE_FILE).write_text("[{")
    with pytest.raises(TrainingError, match=r"curve\.json: not a readable training curve"):
        add_point(tmp_path, 100, {})
    with pytest.raises(TrainingError, match="cannot be written"):
        add_point(tmp_path / CURVE_FILE, 100, {})
