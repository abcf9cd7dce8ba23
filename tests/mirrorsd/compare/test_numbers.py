"""Numbers and commands of results."""

from pathlib import Path

from mirrorsd.compare.numbers import run_command
from tests.sim.worlds.schedules import mirror, speculative


def test_a_command_names_exits_only_where_the_schedule_takes_one():
    models = ("--target", "t", "--exits", "e", "--dtype", "int8")
    question = "--prompt 'Why is the sky blue?'"
    begin = "mirrorsd run --schedule 's 1.yaml' --target t"
    assert run_command(Path("s 1.yaml"), mirror("exit"), models) == f"{begin} --exits e --dtype int8 {question}"
    assert run_command(Path("s 1.yaml"), speculative(), models) == f"{begin} --dtype int8 {question}"
