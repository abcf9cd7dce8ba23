"""Every mistake in a YAML file is told with its line and column."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from decoding.errors import ConfigError
from decoding.yaml_file import load_yaml, parse_yaml, save_yaml


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    seconds: float
    rows: list[int] = []


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    parts: dict[str, Inner] = {}
    pairs: list[Inner] = []


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, Outer, source="my.yaml")
    return str(caught.value)


def test_a_right_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "right.yaml"
    path.write_text("name: a\nparts:\n  layer: {seconds: 1.0e-3, rows: [1, 2]}\n")
    assert load_yaml(path, Outer) == Outer(name="a", parts={"layer": Inner(seconds=0.001, rows=[1, 2])})


def test_a_wrong_value_is_shown_where_it_stands() -> None:
    found = complaint("name: a\nparts:\n  layer:\n    seconds: 1\n    rows: [1, two, 3]\n")
    assert found.startswith("my.yaml:5:15: parts.layer.rows.1: ")
    assert found.endswith("found 'two'")


def test_all_mistakes_are_listed() -> None:
    lines = complaint("name: [1]\npairs:\n  - seconds: fast\n  - seconds: 2\n    row: 3\n").splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["my.yaml:1:7", "name"],
        ["my.yaml:3:14", "pairs.0.seconds"],
        ["my.yaml:5:10", "pairs.1.row"],
    ]


def test_what_is_missing_is_told_at_its_parent() -> None:
    assert complaint("name: a\npairs:\n  - rows: [1]\n").startswith("my.yaml:3:5: pairs.0.seconds: Field required")


def test_an_exponent_without_a_point_is_explained() -> None:
    found = complaint("name: a\npairs:\n  - rows: [1e1]\n    seconds: 2\n")
    assert "my.yaml:3:12: pairs.0.rows.0" in found
    assert found.endswith("(YAML reads it as text: write 1.0e-3, not 1e-3 or '1e-3')")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nname: b\n", "my.yaml:2:1: the key 'name' is repeated"),
        ("name: a\npairs:\n  - {seconds: 1, seconds: 2}\n", "my.yaml:3:18: the key 'seconds' is repeated"),
        ("", "my.yaml: is empty"),
        ("# nothing but a comment\n", "my.yaml: is empty"),
    ],
)
def test_what_a_reader_would_silently_forgive_is_refused(text: str, expected: str) -> None:
    assert complaint(text) == expected


def test_broken_yaml_is_told_with_its_line() -> None:
    assert "line 2, column 6" in complaint("name: [a\nparts: b\n")


def test_a_yaml_file_builds_no_objects() -> None:
    assert "not valid YAML" in complaint("name: !!python/object/apply:os.getcwd []\n")


@pytest.mark.parametrize("content", [None, b"\xff\xfe name"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "some.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"some\.yaml: cannot be read"):
        load_yaml(path, Outer)


def test_saving_keeps_the_order_and_leaves_no_scratch_file(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "saved.yaml"
    save_yaml({"b": 1, "a": [2]}, path)
    assert path.read_text() == "b: 1\na:\n- 2\n"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("not a folder")
    with pytest.raises(ConfigError, match=r"saved\.yaml: cannot be written"):
        save_yaml({}, tmp_path / "folder" / "saved.yaml")
