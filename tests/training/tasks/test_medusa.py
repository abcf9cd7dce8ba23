"""What is Medusa's own in training; the rest: `test_head_tasks`."""

from tests.training.tasks.tiny_head_tasks import medusa_task


def test_only_the_heads_are_trained(target, states) -> None:
    names = {name.split(".")[2] for name, _ in medusa_task(target, states).module.named_parameters()}
    assert names == {"blocks", "projection"}
