import pytest
import yaml

from decoding.errors import ConfigError
from hwprofiles.platform import load_platform
from planner.reproduce.reproduction import predict_table
from planner.reproduce.setup import Machine
from planner.reproduce.stored_constants import default_constants, load_constants, save_constants


def test_the_shipped_constants_are_those_of_the_fit(fitted, machine):
    values, origin = load_constants("m2-ultra-x8", machine)
    assert values == pytest.approx(dict(fitted.constants), rel=0.02)
    assert "mirror-sd-qwen3-14b.csv" in origin


def test_they_are_the_default_where_they_were_fitted_and_data_sheets_are_elsewhere(machine):
    assert default_constants("m2-ultra-x8") == "m2-ultra-x8"
    assert default_constants("lunar-lake") == "datasheet"
    assert load_constants("datasheet", machine)[0] == machine.datasheet()


def test_what_is_kept_comes_back(fitted, machine, tmp_path):
    path = tmp_path / "kept.yaml"
    save_constants(fitted, path)
    values, origin = load_constants(str(path), machine)
    assert values == pytest.approx(dict(fitted.constants), rel=1e-3)
    assert "12 cells" in origin


def test_constants_that_were_given_are_not_kept_as_fitted(table, setup, machine, tmp_path):
    with pytest.raises(ConfigError, match="were fitted"):
        save_constants(predict_table(table, setup, machine.datasheet()), tmp_path / "kept.yaml")


def test_links_between_machines_do_not_count_where_there_is_one():
    values, _ = load_constants("m2-ultra-x8", Machine.of(load_platform("lunar-lake")))
    assert set(values) == {"handover_s", "exit_coverage"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exit_coverage": 1.2}, "exit_coverage is 1.2, physical are 0.3 to 0.95"),
        ({"handover_s": 1.0}, "handover_s is 1, physical are 1e-05 to 0.0004"),
        ({"magic": 1.0}, "magic"),
    ],
)
def test_what_is_not_physical_is_refused(changes, words, machine, tmp_path):
    path = tmp_path / "constants.yaml"
    head = {"platform": "p", "fitted_to": "t", "mean_abs_error": 0.1, "num_cells": 1}
    path.write_text(yaml.safe_dump(head | {"constants": changes}))
    with pytest.raises(ConfigError, match=r"constants\.yaml") as caught:
        load_constants(str(path), machine)
    assert words in str(caught.value)


def test_a_name_that_is_none_lists_those_there_are(machine):
    with pytest.raises(ConfigError, match=r"'m3'; there are datasheet, m2-ultra-x8"):
        load_constants("m3", machine)
