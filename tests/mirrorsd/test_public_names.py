import ast
import inspect
import pickle
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path
from types import UnionType
from xml.etree import ElementTree as ET

import pytest

import mirrorsd
from mirrorsd.text_engine import Answer
from tests.planner.synthetic import acceptance_record, machine


def declared_for_type_checkers():
    tree = ast.parse(Path(mirrorsd.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {alias.asname: statement.module for statement in block.body for alias in statement.names}


@pytest.mark.parametrize("name", dir(mirrorsd))
def test_every_name_is_what_its_home_calls_so(name):
    home = declared_for_type_checkers()[name]
    found = getattr(mirrorsd, name)
    assert found is getattr(sys.modules[home], name)


def test_type_checkers_and_users_see_the_same_names():
    assert sorted(declared_for_type_checkers()) == dir(mirrorsd)


def test_the_names_of_the_design_are_public():
    assert {"Schedule", "plan", "simulate", "generate"} <= set(dir(mirrorsd))
    assert mirrorsd.plan is mirrorsd.plan_pair


def test_a_star_imports_what_is_public():
    found = {}
    exec("from mirrorsd import *", found)
    assert sorted(found.keys() - {"__builtins__"}) == dir(mirrorsd)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(AttributeError, match=r"no attribute 'guess'; it has .*, simulate"):
        mirrorsd.guess  # noqa: B018


def callables(name):
    """A public function, or what a public class is made by and can do."""
    found = getattr(mirrorsd, name)
    if isinstance(found, UnionType):
        return {}
    if not inspect.isclass(found):
        return {name: found}
    methods = {f"{name}.{key}": getattr(found, key) for key in vars(found) if not key.startswith("_")}
    made_by = {} if is_dataclass(found) else {name: found.__init__}
    return {
        key: method for key, method in (made_by | methods).items() if inspect.isroutine(method) and callable(method)
    }


PATHS = {
    f"{key}({parameter.name})": str(parameter.annotation)
    for name in dir(mirrorsd)
    for key, function in callables(name).items()
    for parameter in inspect.signature(function).parameters.values()
    if "Path" in str(parameter.annotation)
}


def test_whoever_takes_a_path_takes_a_string():
    assert {"calibrate(path)", "record(path)", "encode(target_folder)", "load_profile(path)"} <= set(PATHS)
    assert [parameter for parameter, annotation in PATHS.items() if "str" not in annotation] == []


WITHOUT_TORCH = "AcceptanceRecord, Schedule, load_profile, make_plan, simulate, predict, Engine, generate, find_pair"


def test_only_calibrating_and_recording_need_torch_here():
    script = f"import sys; from mirrorsd import {WITHOUT_TORCH}; print('torch' in sys.modules, 'plotly' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "False False\n"


def test_importing_the_package_loads_nothing_else():
    script = "import sys; import mirrorsd; print(sorted({'numpy', 'pydantic', 'decoding', 'typer'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.fixture(scope="module")
def results():
    """What users get in a notebook, from a made-up machine and a shipped platform."""
    profile, record = machine(), acceptance_record()
    plan = mirrorsd.make_plan(mirrorsd.SearchSpace(windows=(2,)), profile, record)
    best = plan.search.winner.schedule
    trace = mirrorsd.simulate(best, profile, record)[0]
    return {
        "Plan": plan,
        "SearchResult": plan.search,
        "Prediction": mirrorsd.predict(best, profile, record),
        "Trace": trace,
        "PlatformPlan": mirrorsd.plan_pair("qwen3-14b", "qwen3-0.6b", "lunar-lake"),
        "Answer": Answer(text="<b>\nyes", tokens=(1, 2), trace=trace),
        "Bernoulli": mirrorsd.Bernoulli(0.8),
        "ByTask": mirrorsd.ByTask({"code": 0.8, "chat": [0.7, 0.6]}),
    }


def test_results_and_assumptions_pass_to_other_processes_also_after_they_were_used(results):
    plan = results["Plan"]
    warned = plan.verdict.explained
    passed = {name: pickle.loads(pickle.dumps(one)) for name, one in results.items()}
    assert {name: repr(one) for name, one in passed.items()} == {name: repr(one) for name, one in results.items()}
    assert passed["Plan"].verdict.explained == warned
    schedule = mirrorsd.Schedule(
        method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=2, drafter="four-layer"
    )
    times = [mirrorsd.predict(schedule, machine(), one["Bernoulli"]).tpot_s for one in (results, passed)]
    assert times[0] == times[1]


def test_a_result_is_one_short_line(results):
    for name, result in results.items():
        assert name in repr(result)
        assert len(repr(result)) < 200
        assert "\n" not in repr(result)


@pytest.mark.parametrize("name", ["Plan", "SearchResult", "PlatformPlan", "Answer"])
def test_a_result_has_well_formed_html(results, name):
    shown = ET.fromstring(f"<div>{results[name]._repr_html_()}</div>")
    assert "".join(shown.itertext()).strip()
    if name == "Answer":
        assert "<b>\nyes" in "".join(shown.itertext())
    else:
        assert 1 <= len(shown.findall(".//tbody/tr")) <= 30


def test_a_notebook_tells_schedules_of_a_search_apart(results):
    shown = ET.fromstring(results["SearchResult"]._repr_html_())
    rows = ["".join(row[0].itertext()) for row in shown.findall(".//tbody/tr")]
    assert len(set(rows)) == len(rows) > 1


def test_a_notebook_tells_schedules_of_a_plan_apart_and_which_need_training(results):
    shown = ET.fromstring(results["PlatformPlan"]._repr_html_())
    rows = [tuple("".join(cell.itertext()) for cell in row) for row in shown.findall(".//tbody/tr")]
    assert len({row[:2] for row in rows}) == len(rows)
    assert any("(exit to be trained)" in name for name, *_ in rows)
