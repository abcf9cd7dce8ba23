"""Where a verb writes is tried before it works: calibration takes minutes, and a training run hours."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from decoding.errors import ConfigError
from decoding.schedule import Schedule, save_schedule
from mirrorsd.cli.app import app
from mirrorsd.cli.console import with_default_destination, write_json
from mirrorsd.cli.option_values import ModelNames
from mirrorsd.cli.options import require_kind
from mirrorsd.compare.numbers import json_text, path_from
from mirrorsd.compare.validate_schedules import MeasuredBasis
from tests.mirrorsd.cli.calls import call, error_of
from tests.mirrorsd.cli.test_app import leaves
from tests.planner.imported.test_llama_bench import JSONL

NOWHERE = ("--target", "./no-such-model")
WRITTEN = {"--out", "--schedule-out", "--profile-out", "--acceptance-out", "--html", "--json", "--trace", "--states"}


def outputs():
    """Every option of every verb that names something to be written, with the words of the verb."""
    for words, command in leaves(typer.main.get_command(app)):
        for option in sorted(WRITTEN.intersection(name for one in command.params for name in one.opts)):
            yield pytest.param(words, command, option, id=" ".join((*words, option)))


@pytest.mark.parametrize(("words", "command", "option"), list(outputs()))
def test_an_output_that_cannot_be_written_is_refused_first(tmp_path, words, command, option):
    (tmp_path / "file").touch()
    needed = [one for one in command.params if one.required and option not in one.opts]
    given = [word for one in needed for word in ((one.opts[-1], "x") if one.param_type_name == "option" else ("x",))]
    result = call(*words, *given, option, tmp_path / "file" / "below" / "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: {tmp_path}/file/below/out")
    assert "cannot be written (Not a directory)" in result.stderr


@pytest.mark.parametrize(("words", "command", "option"), list(outputs()))
def test_no_file_is_written_under_the_name_of_another_kind(tmp_path, words, command, option):
    needed = [one for one in command.params if one.required and option not in one.opts]
    given = [word for one in needed for word in ((one.opts[-1], "x") if one.param_type_name == "option" else ("x",))]
    path = tmp_path / ("best.html" if words == ("record",) else "best.npz")
    refused = error_of(*words, *given, option, path)
    assert refused.startswith(f"Error: {path}: ")
    assert f"; name it {path.with_suffix('')}" in refused


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("plan", "--target", "x", "--draft", "x", "--out", "best.yaml"), "into this file; name it best.html"),
        (("search", "--profile", "x", "--html", "best.YML"), "HTML would go into this file; name it best.html"),
        (("search", "--profile", "x", "--out", "best.html"), "YAML would go into this file; name it best.yaml"),
        (("report", "x", "--json", "best.html"), "JSON would go into this file; name it best.json"),
        (("import", "x", "--profile-out", "best.npz"), "YAML would go into this file; name it best.yaml"),
        (("demo", "--out", "best.json"), "this would be a folder; name it best"),
        (("demo", "--out", "best.json.gz"), "this would be a folder; name it best"),
        (("report", "x", "--json", "a.json.gz"), "JSON would go into this file; name it a.json"),
        (("search", "--profile", "x", "--out", "profile.yaml.bak"), "would go into this file; name it profile.yaml"),
        (("calibrate", "--out", "host.local.html"), "YAML would go into this file; name it host.local.yaml"),
        (("run", "--schedule", "x", "--out", "rows.jsonl.gz"), "Lines would go into this file; name it rows.jsonl"),
    ],
)
def test_an_output_of_another_kind_is_told_its_name(words, told):
    refused = error_of(*words)
    assert refused.startswith(f"Error: {words[-1]}: ")
    assert refused.endswith(told)


@pytest.mark.parametrize("name", ["best", "best-0.8", "best.YAML", "llama-3.1-8b.yml", "host.local", "Dr.Smith"])
def test_names_without_endings_and_with_dots_in_them_are_taken(name, tmp_path):
    assert require_kind(tmp_path / name, "YAML") is None


@pytest.mark.parametrize("kind", ["JSON Lines", "a token file"])
@pytest.mark.parametrize("name", ["rows.txt", "rows.ndjson"])
def test_rows_may_have_an_ending_of_no_other_kind(name, kind, tmp_path):
    assert require_kind(tmp_path / name, kind) is None


def test_all_verbs_that_write_are_among_them():
    assert len(list(outputs())) > 40


@pytest.mark.parametrize(
    "words",
    [
        ("search", "--profile", "FILE", "--record", "r.npz", "--out", "./FILE"),
        ("report", "FILE", "--out", "FILE"),
        ("report", "a-link", "--out", "FILE"),
        ("validate", "--schedule", "s", "--schedule", "FILE", "--profile", "p", "--record", "r", "--json", "FILE"),
        ("train", "generate", "--passages", "FILE", "--out", "FILE"),
    ],
)
def test_a_file_that_a_verb_reads_is_not_written_over(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("took an hour")
    Path("a-link").symlink_to("FILE")
    result = call(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"Error: {words[-2]} {tmp_path / 'FILE'}: this command reads that file; name another file\n"


@pytest.mark.parametrize(
    ("words", "name", "what"),
    [
        (("validate", "--schedule", "s", "--profile", "p", "--record", "r"), "demo.json", "a demo"),
        (("demo", *NOWHERE), "validate.json", "a validation"),
    ],
)
def test_demos_and_validations_do_not_replace_each_others_runs(words, name, what, tmp_path):
    (tmp_path / name).touch()
    refused = error_of(*words, "--out", tmp_path)
    assert refused.startswith(f"Error: --out {tmp_path}: has the result of {what}, which would be overwritten; ")


@pytest.mark.parametrize("option", ["--out", "--json"])
@pytest.mark.parametrize("name", ["demo.json", "record.npz", "traces.json.gz"])
def test_a_report_is_written_over_nothing_that_it_is_made_from(name, option, tmp_path):
    folder = shutil.copytree("benchmarks/results/demos/1", tmp_path / "demo")
    link = tmp_path / {"--out": "page.html", "--json": "page.json"}[option]
    link.symlink_to(folder / name)
    refused = error_of("report", folder, option, link)
    assert refused == f"Error: {option} {link}: this command reads that file; name another file"


@pytest.mark.parametrize(
    ("words", "written", "other"),
    [
        (("calibrate", *NOWHERE, "--out", "here", "--json", "here"), "--json", "--out"),
        (("record", *NOWHERE, "--out", "here", "--json", "./here"), "--json", "--out"),
        (("run", "--schedule", "s", "--out", "here", "--json", "here"), "--json", "--out"),
        (("search", "--profile", "p", "--html", "here", "--out", "a-link"), "--html", "--out"),
        (("demo", *NOWHERE, "--out", "here", "--json", "here"), "--json", "--out"),
        (("plan", "--target", "t", "--draft", "d", "--profile-out", "here", "--out", "here"), "--profile-out", "--out"),
    ],
)
def test_two_outputs_are_not_one_file(words, written, other, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a-link").symlink_to("here")
    here = tmp_path / "here"
    assert error_of(*words) == f"Error: {written} {here}: {other} names the same file; name another file"
    assert not here.exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("out/validate/best.yaml", ("--schedule", "out/validate/best.yaml", "--profile", "p", "--record", "r")),
        ("best.yaml", ("--schedule", "s", "--schedule", "a-link", "--profile", "p", "--record", "r", "--out", ".")),
        (
            "report.html",
            ("--schedule", "s", "--profile", "p", "--record", "r", "--prompts", "report.html", "--out", "."),
        ),
    ],
)
def test_a_validation_writes_over_nothing_that_it_reads(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text("took an hour")
    Path("a-link").symlink_to("best.yaml")
    refused = call("validate", *words, exit_code=2).said
    read = "a-link" if "a-link" in words else name
    assert f"this command reads {read} and might overwrite it; name another folder" in refused
    assert Path(name).read_text() == "took an hour"


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        (["simulate", "--json"], ["simulate", "--json", "-"]),
        (["simulate", "--json", "--trace", "t.json"], ["simulate", "--json", "-", "--trace", "t.json"]),
        (["simulate", "--json", "-"], ["simulate", "--json", "-"]),
        (["demo", "--json", "out.json"], ["demo", "--json", "out.json"]),
        (["demo", "--json=out.json"], ["demo", "--json=out.json"]),
        (["demo"], ["demo"]),
    ],
)
def test_json_without_a_path_means_stdout(given, completed):
    assert with_default_destination(given) == completed


@pytest.mark.parametrize(
    ("words", "content"),
    [(("profiles", "lint"), "name: x\n"), (("import",), JSONL.read_text())],
    ids=["profiles lint", "import"],
)
def test_a_file_after_json_is_an_input_of_a_verb_that_takes_many(words, content, tmp_path):
    given, out = tmp_path / "given", tmp_path / "result.json"
    given.write_text(content)
    told, flagged = call(*words, given, "--json"), call(*words, "--json", given)
    assert (flagged.stdout, flagged.exit_code, given.read_text()) == (told.stdout, told.exit_code, content)
    for more in ((given, "--json", out), ("--json", out, given), (given, f"--json={out}")):
        call(*words, *more, exit_code=told.exit_code)
        assert out.read_text() == told.stdout, "a new file, and then one of that verb"
        out.write_text(f"{told.stdout} of another day")
    assert "this command reads that file; name another file" in error_of(*words, given, f"--json={given}")


def test_a_path_or_nothing_leaves_stdout_to_the_text_and_stdout_gets_nothing_but_the_json(tmp_path, capsys):
    path = tmp_path / "deep" / "result.json"
    assert write_json({"a": 1}, str(path))
    assert json.loads(path.read_text()) == {"a": 1}
    assert write_json({"a": 1}, None)
    assert capsys.readouterr().out == ""
    assert not write_json({"a": 1}, "-")
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_a_file_tells_paths_as_seen_from_its_own_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = {"folder": "out/demo", "name": "out/demo"}
    write_json(result, "results/deep/a.json", relative=["folder"])
    assert json.loads(Path("results/deep/a.json").read_text()) == {"folder": "../../out/demo", "name": "out/demo"}
    write_json(result, "-", relative=["folder"])
    assert json.loads(capsys.readouterr().out) == result


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=str(tmp_path)):
        write_json({}, str(tmp_path))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"a": [1.5, float("nan")], "b": {"c": float("inf")}}, {"a": [1.5, None], "b": {"c": None}}),
        ({3: (1, 2), "file": Path("a/b")}, {"3": [1, 2], "file": "a/b"}),
    ],
)
def test_what_json_does_not_know_becomes_null_text_or_a_list_and_letters_stay_readable(data, told):
    assert json.loads(json_text(data)) == told
    assert json_text({"é": "漢"}) == '{\n  "é": "漢"\n}\n'


@pytest.mark.parametrize(
    ("path", "told"), [("out/a.json", "a.json"), ("out", "."), ("b.json", "../b.json"), ("in/c", "../in/c")]
)
def test_paths_are_told_as_seen_from_a_folder(tmp_path, monkeypatch, path, told):
    monkeypatch.chdir(tmp_path)
    assert path_from(Path("out"), Path(path)) == told
    assert path_from(Path("out").absolute(), Path(path)) == path_from(Path("out"), Path(path).absolute()) == told


def test_a_validation_that_is_interrupted_while_it_is_written_says_so(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    best = tmp_path / "best.yaml"
    save_schedule(Schedule(method="autoregressive", target_lane="cpu0"), best)
    monkeypatch.setattr(MeasuredBasis, "load", lambda *_: SimpleNamespace(profile=None, record=None))
    monkeypatch.setattr("mirrorsd.cli.verbs.validate.models_of", lambda *_: ModelNames())
    monkeypatch.setattr("mirrorsd.compare.validate_schedules.validate", lambda *_, **__: None)
    monkeypatch.setattr("mirrorsd.compare.outcome_folder.write_outcome", interrupted)
    out = tmp_path / "out"
    words = ("--schedule", best, "--profile", "p", "--record", "r", "--out", out)
    assert call("validate", *words, exit_code=130).said == f"Interrupted. The result in {out} may not be whole."
