"""What holds for every committed result: no path of a machine, the weights of today, and a command that makes it."""

import json
import re
from pathlib import Path

import pytest

from runtime.drafters.registry import SHIPPED_FOLDER, shipped_names
from runtime.models import default_model
from tests.benchmarks.scripts import RESULTS, ROOT, load_script

FILES = sorted(RESULTS.glob("*.json"))
RAW = sorted(path for path in RESULTS.glob("*/**/*") if path.suffix in (".json", ".yaml"))


@pytest.fixture(scope="module")
def common():
    return load_script("_common")


@pytest.fixture(scope="module")
def today(common):
    """Hashes of all that ships, and of the embedded model, which need not be in the cache for it."""
    source = default_model._manifest(default_model.SMOLLM2)
    shipped = common.measured(*(SHIPPED_FOLDER / name for name in shipped_names()))
    return shipped | {common.EMBEDDED: common.source_hash(source)}


@pytest.mark.parametrize("path", [*FILES, *RAW], ids=lambda path: str(path.relative_to(RESULTS)))
def test_no_path_of_a_machine_is_in_a_committed_result(path):
    absolute = re.findall(r'"(?:/|~|[A-Za-z]:\\)[^"\n]*"', path.read_text(encoding="utf-8"))
    assert absolute == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_committed_result_is_about_the_weights_of_today(path, common, today):
    changed = common.out_of_date(common.read_result(path), today)
    assert changed == [], f"{path.name} is older than what it measured; benchmarks/README.md has the command"


def test_a_result_has_the_hashes_of_all_models_that_it_names(common):
    for result in (common.read_result(path) for path in FILES):
        assert models_named(result, common) <= models_measured(result)


def test_every_result_has_the_command_that_makes_it_and_every_script_a_command():
    table = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in FILES if f"`{path.name}`" not in table] == []
    scripts = {path.name for path in RESULTS.parent.glob("[a-z]*.py")}
    assert scripts == set(re.findall(r"`benchmarks/([a-z]\w*\.py)", table))


def test_a_result_goes_out_of_date_with_one_byte_of_what_it_measured(common, tmp_path, monkeypatch):
    monkeypatch.setattr(common, "SHIPPED_FOLDER", tmp_path)
    for name, weights in {"mine": b"one", "yours": b"two"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(weights)
        (tmp_path / name / "card.json").write_text("{}")
    result = {"measured": common.measured(tmp_path / "mine")}
    assert set(result["measured"]) == {"shipped/mine/config.json", "shipped/mine/model.safetensors"}

    def changed():
        return common.out_of_date(result, common.measured(tmp_path / "mine", tmp_path / "yours"))

    assert changed() == []
    (tmp_path / "yours" / "model.safetensors").write_bytes(b"three")
    (tmp_path / "mine" / "card.json").write_text('{"acceptance": 1}')
    assert changed() == []
    (tmp_path / "mine" / "model.safetensors").write_bytes(b"onf")
    assert changed() == ["shipped/mine/model.safetensors"]
    (tmp_path / "mine" / "config.json").unlink()
    assert changed() == ["shipped/mine/config.json", "shipped/mine/model.safetensors"]


def test_a_result_goes_out_of_date_with_the_format_of_what_it_reads(common):
    result = {"measured": {}, "formats": common.formats()}
    assert common.out_of_date(result, {}) == []
    result["formats"]["record"] = "mirrorsd-acceptance-record-1"
    assert common.out_of_date(result, {}) == ["record format"]


def test_weights_that_do_not_ship_are_kept_and_not_looked_up(common, tmp_path, today):
    (tmp_path / "model.safetensors").write_bytes(b"mine")
    result = {"measured": common.measured(tmp_path)}
    assert list(result["measured"]) == [f"{tmp_path.name}/model.safetensors"]
    assert common.out_of_date(result, today) == []


def test_a_converted_model_is_known_by_its_source_and_its_conversion(common, tmp_path):
    source = {"gguf_sha256": "abc", "conversion": 1, "files": {"model.safetensors": 3}}
    (tmp_path / "mirrorsd.json").write_text(json.dumps(source))
    (tmp_path / "model.safetensors").write_bytes(b"too large to be read each time")
    assert common.measured(tmp_path) == {tmp_path.name: common.source_hash(source)}
    assert common.source_hash(source | {"conversion": 2}) != common.source_hash(source)
    assert common.source_hash(source | {"gguf_sha256": "abd"}) != common.source_hash(source)
    assert common.source_hash(source | {"files": {}}) == common.source_hash(source)


def test_the_cached_model_is_the_one_that_the_package_knows(common, today, embedded_model_folder):
    assert common.measured(embedded_model_folder) == {common.EMBEDDED: today[common.EMBEDDED]}


def models_named(result: dict, common) -> set[str]:
    """Models that ship, and the embedded one, as far as a result's text has their names."""
    told = json.dumps({key: value for key, value in result.items() if key != "measured"})
    return {name for name in (*shipped_names(), common.EMBEDDED) if re.search(rf"(?<![\w-]){name}(?![\w-])", told)}


def models_measured(result: dict) -> set[str]:
    """Folders of the weights whose hashes a result has."""
    return {Path(name).parent.name or name for name in result["measured"]}


PAGES = load_script("pages")


@pytest.mark.parametrize("name", [*PAGES.SECTIONS, PAGES.PICTURE])
def test_a_page_shows_the_committed_results(name):
    assert PAGES.content(name) == (ROOT / name).read_text(encoding="utf-8")


def test_only_what_lies_between_the_markers_changes():
    begin, end = "<!-- mine: written by benchmarks/pages.py -->", "<!-- end of mine -->"
    page = f"before\n{begin}\nold\n{end}\nafter\n"
    assert PAGES._common.with_section(page, "mine", "new\n") == f"before\n{begin}\nnew\n{end}\nafter\n"


def test_contenders_take_turns_and_the_first_rounds_do_not_count(common, capsys):
    order = []

    def measure(name, index):
        order.append(name)
        return f"{name}{index}"

    assert common.in_rounds(["a", "b"], measure, 2, warm_up=1) == {"a": ["a1", "a2"], "b": ["b1", "b2"]}
    assert "".join(order) == "abbaab"
    assert "round 3 of 3" in capsys.readouterr().out
