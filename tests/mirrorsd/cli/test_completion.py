"""The shell completes names of what ships."""

import pytest
import typer

from mirrorsd.cli import options
from mirrorsd.cli.app import app
from mirrorsd.cli.verbs.plan import EXAMPLE


@pytest.mark.parametrize(
    ("complete", "incomplete", "found"),
    [
        (options.shape_names, "qwen3-14", ["qwen3-14b"]),
        (options.platform_names, "rtx30", ["rtx3060", "rtx3080", "rtx3090"]),
        (options.target_names, "smol", ["smollm2-135m-instruct"]),
        (options.target_names, "shape:qwen3-14", ["shape:qwen3-14b"]),
        (options.drafter_names, "no", ["none"]),
        (options.drafter_names, "none,smollm2-135m-m", ["none,smollm2-135m-medusa"]),
        (options.platform_names, "nowhere", []),
    ],
)  # fmt: skip
def test_names_that_begin_so_are_found(complete, incomplete, found):
    assert complete(incomplete) == found


def test_the_options_of_plan_complete_what_its_example_names():
    command = typer.main.get_command(app).commands["plan"]
    words = EXAMPLE.split()[2:]
    with command.make_context("plan", list(words)) as context:
        for name, value in zip(words[::2], words[1::2], strict=True):
            (option,) = [one for one in command.params if name in one.opts]
            assert value in [one.value for one in option.shell_complete(context, value[:3])]
