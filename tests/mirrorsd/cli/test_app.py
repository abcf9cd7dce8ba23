"""What holds for every verb."""

import json
import os
import signal
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from decoding.errors import ConfigError
from mirrorsd.cli import options
from mirrorsd.cli.app import Verbs, app
from mirrorsd.cli.console import telling_what_was_saved
from mirrorsd.cli.verbs.plan import EXAMPLE
from tests.journeys.printed import COMMAND, leaves

CALL = [sys.executable, "-m", "mirrorsd"]


def command_that(raises):
    """A verb that raises something, or what a function raises."""
    command = typer.Typer(cls=Verbs, pretty_exceptions_enable=False)

    @command.command()
    def fail():
        raise raises() if callable(raises) else raises

    @command.callback()
    def root():
        pass

    return command


ALL = dict(leaves())


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_verb_has_json_and_an_example_that_calls_it(words):
    command = ALL[words]
    assert any("--json" in parameter.opts for parameter in command.params)
    assert f"mirrorsd {' '.join(words)}" in command.epilog
    assert all(parameter.help for parameter in command.params)
    shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"}).output
    assert "bool" not in shown, "a flag takes no value"


@pytest.mark.parametrize("words", [(), ("models",), ("profiles",), ("train",)], ids=" ".join)
def test_a_help_of_several_verbs_gives_flags_no_value_either(words):
    assert "bool" not in CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"}).output


def test_an_error_of_the_user_is_one_message_and_status_2():
    result = CliRunner().invoke(command_that(ConfigError("a.yaml:3:1: [wrong] is 7")), ["fail"])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "Error: a.yaml:3:1: [wrong] is 7\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plan", "--top", "0"], "greater than or equal to 1, found '0'"),
        (["run", "--temperature", "warm"], "found 'warm'"),
        (["run", "--dtype", "fp32"], "'fp32' is not one of 'float32', 'bfloat16', 'int8', 'int4'. "),
    ],
)
def test_a_value_that_an_option_refuses_is_named(words, told):
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr


def test_a_name_that_no_system_takes_is_an_error_of_the_user():
    result = CliRunner().invoke(app, ["profiles", "show", "x" * 300])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: 'xxx")
    assert "cannot be a path" in result.stderr


@pytest.mark.parametrize("words", [("profiles", "list"), ("profiles", "list", "--json")])
def test_a_full_output_is_one_message(words):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        found = subprocess.run([*CALL, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (found.returncode, found.stderr) == (2, "Error: [Errno 28] No space left on device\n")


def test_a_narrow_encoding_loses_no_answer():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    plan = ["plan", "--target", "qwen3-14b", "--draft", "qwen3-0.6b", "--platform", "lunar-lake", "--json"]
    shown, told = (
        subprocess.run([*CALL, *words], env=environment, capture_output=True, check=True).stdout.decode()
        for words in (["curve", "--target", "llama-3.1-8b", "--device", "rtx4090"], plan)
    )
    assert r"1\xd7" in shown
    assert "×" in json.loads(told)["verdict"]


@pytest.mark.parametrize("verb", [["demo", "--out"], ["train", "generate", "--out"]])
def test_a_word_that_is_not_utf_8_is_refused_before_anything_runs(verb):
    result = CliRunner().invoke(app, [*verb, "caf\udce9"])
    assert result.exit_code == 2
    assert r"'caf\udce9' is not UTF-8" in result.stderr


def test_a_defect_of_ours_is_not_hidden():
    result = CliRunner().invoke(command_that(ZeroDivisionError("ours")), ["fail"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_ctrl_c_is_one_message_and_status_130():
    result = CliRunner().invoke(command_that(KeyboardInterrupt()), ["fail"])
    assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")


VERB_AFTER_ITS_WORK = """
import signal
from decoding.errors import LaneDiedError
from mirrorsd.cli.console import telling_what_was_saved
from tests.mirrorsd.cli.test_app import command_that
def late():
    with telling_what_was_saved(["a.npz is there."]):
        pass
    try:
        signal.raise_signal({number})
    except KeyboardInterrupt:
        raise LaneDiedError("its process ended") from None
usual = signal.default_int_handler if {number} == signal.SIGINT else signal.SIG_DFL
signal.signal({number}, usual)  # a shell's background commands ignore SIGINT, those under nohup SIGHUP
command_that(late)()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_work_is_told_too_whatever_error_it_leads_to(number):
    command = [sys.executable, "-c", VERB_AFTER_ITS_WORK.format(number=int(number)), "fail"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (128 + number, "\nStopping.\nInterrupted.\n")


def test_ctrl_c_while_the_command_is_loaded_is_one_message():
    code = "import sys; from mirrorsd.cli import main\nclass Interrupts:\n def find_spec(self, name, *_):\n"
    code += "  if name == 'typer': raise KeyboardInterrupt\nsys.meta_path.insert(0, Interrupts())\nmain()"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (130, "Interrupted.\n")


def test_ctrl_c_tells_what_was_saved():
    command = typer.Typer(cls=Verbs)

    @command.command()
    def work():
        with telling_what_was_saved(saved := []):
            saved.append("a.npz holds 3 prompts.")
            raise KeyboardInterrupt

    @command.callback()
    def root():
        pass

    result = CliRunner().invoke(command, ["work"])
    assert (result.exit_code, result.stderr) == (130, "\nInterrupted. a.npz holds 3 prompts.\n")


def test_ctrl_c_tells_what_is_there_by_then(tmp_path):
    path = tmp_path / "a.npz"

    def written():
        with telling_what_was_saved(lambda: ["a.npz is there."] if path.exists() else []):
            path.touch()
            raise KeyboardInterrupt

    assert CliRunner().invoke(command_that(written), ["fail"]).stderr == "\nInterrupted. a.npz is there.\n"


def test_help_loads_neither_torch_nor_any_other_heavy_library():
    heavy = {"torch", "transformers", "plotly", "pydantic", "numpy", "simpy", "networkx", "yaml", "huggingface_hub"}
    script = "import sys; from mirrorsd.cli import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=True)
    assert heavy & set(result.stderr.split()) == set()


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_told(option):
    result = CliRunner().invoke(app, [option])
    assert (result.exit_code, result.stdout) == (0, "mirrorsd 0.1.0\n")


@pytest.mark.parametrize("words", [(), ("plan",), ("train", "draft")])
def test_short_and_long_help_are_one(words):
    short, long = (CliRunner().invoke(app, [*words, option]) for option in ("-h", "--help"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)


@pytest.mark.parametrize(
    ("complete", "incomplete", "found"),
    [
        (options.shape_names, "qwen3-14", ["qwen3-14b"]),
        (options.platform_names, "rtx308", ["rtx3080", "rtx3080-12gb", "rtx3080ti", "rtx3080ti-laptop"]),
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
    command = COMMAND.commands["plan"]
    words = EXAMPLE.split()[2:]
    with command.make_context("plan", list(words)) as context:
        for name, value in zip(words[::2], words[1::2], strict=True):
            (option,) = [one for one in command.params if name in one.opts]
            assert value in [one.value for one in option.shell_complete(context, value[:3])]
