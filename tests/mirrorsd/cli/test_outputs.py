"""Where a verb writes is tried before it works: calibration takes minutes, and a training run hours."""

import pytest
import typer

from mirrorsd.cli.app import app
from tests.mirrorsd.cli.test_app import leaves

WRITTEN = {"--out", "--json", "--trace", "--states", "--save-constants"}


def outputs():
    """Every option of every verb that names something to be written, with the words of the verb."""
    for words, command in leaves(typer.main.get_command(app)):
        for option in sorted(WRITTEN.intersection(name for one in command.params for name in one.opts)):
            yield pytest.param(words, command, option, id=" ".join((*words, option)))


@pytest.mark.parametrize(("words", "command", "option"), list(outputs()))
def test_an_output_that_cannot_be_written_is_refused_first(mirrorsd, tmp_path, words, command, option):
    (tmp_path / "file").touch()
    needed = [one for one in command.params if one.required and option not in one.opts]
    given = [word for one in needed for word in ((one.opts[-1], "x") if one.param_type_name == "option" else ("x",))]
    result = mirrorsd(*words, *given, option, tmp_path / "file" / "below" / "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: {tmp_path}/file/below/out")
    assert "cannot be written (Not a directory)" in result.stderr


def test_all_verbs_that_write_are_among_them():
    assert len(list(outputs())) > 25
