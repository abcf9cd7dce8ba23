"""Every mistake in a YAML file is told with its line and column."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel

from decoding import yaml_file
from decoding.errors import MOST_CHARACTERS, ConfigError
from decoding.yaml_file import StrictModel, lines_of, load_yaml, parse_yaml, save_yaml


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

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


def test_a_wrong_value_is_shown_where_it_stands():
    found = complaint("name: a\nparts:\n  layer:\n    seconds: 1\n    rows: [1, two, 3]\n")
    assert found.startswith("my.yaml:5:15: parts.layer.rows.1: ")
    assert found.endswith("found 'two'")


def test_all_mistakes_are_listed():
    lines = complaint("name: [1]\npairs:\n  - seconds: fast\n  - seconds: 2\n    row: 3\n").splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["my.yaml:1:7", "name"],
        ["my.yaml:3:14", "pairs.0.seconds"],
        ["my.yaml:5:10", "pairs.1.row"],
    ]


def test_what_is_missing_is_told_at_its_parent():
    assert complaint("name: a\npairs:\n  - rows: [1]\n").startswith("my.yaml:3:5: pairs.0.seconds: Field required")


def test_an_exponent_without_a_point_is_explained_where_one_with_a_point_would_do():
    seconds, rows = complaint("name: a\npairs:\n  - seconds: 1e-1\n    rows: [1e1]\n").splitlines()
    assert seconds.startswith("my.yaml:3:14: pairs.0.seconds: ")
    assert seconds.endswith("(YAML reads it as text: write 1.0e-3, not 1e-3 or '1e-3')")
    assert rows == "my.yaml:4:12: pairs.0.rows.0: Input should be a valid integer, found '1e1'"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nname: b\n", "my.yaml:2:1: the key 'name' is repeated"),
        ("name: a\npairs:\n  - {seconds: 1, seconds: 2}\n", "my.yaml:3:18: the key 'seconds' is repeated"),
        ("name: a\npairs: {4: 1, 04: 2}\n", "my.yaml:2:15: the key '04' is repeated in another spelling"),
        ("name: a\npairs: {true: 1, yes: 2}\n", "my.yaml:2:18: the key 'yes' is repeated in another spelling"),
        ("", "my.yaml: is empty"),
        ("# nothing but a comment\n", "my.yaml: is empty"),
    ],
)
def test_what_a_reader_would_silently_forgive_is_refused(text, expected):
    assert complaint(text) == expected


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 25)
)
MAP_BOMB = "a0: &a0 {x: x, y: x}\n" + "".join(
    f"a{level}: &a{level} {{x: *a{level - 1}, y: *a{level - 1}}}\n" for level in range(1, 38)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BOMB, "it has more than 50,000 values, those of aliases included"),
        (MAP_BOMB, "it has more than 50,000 values, those of aliases included"),
        ("name: &me [*me]\n", "my.yaml:1:7: an alias stands for what it is a part of"),
        ("[" * 10_000, "my.yaml:1:41: lists and maps are nested more than 40 deep"),
        ("{a: " * 10_000, "lists and maps are nested more than 40 deep"),
        ("- " * 10_000, "lists and maps are nested more than 40 deep"),
        ("a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 99)), "nested more than 40 deep"),
        ("name: [a\nparts: b\n", "my.yaml:2:6: not valid YAML: "),
        ("name: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        ("name: !!int x\n", "my.yaml:1:7: not valid YAML: 'x' is no int"),
        ("name: !!float x\n", "my.yaml:1:7: not valid YAML: 'x' is no float"),
        ("name: !!bool x\n", "my.yaml:1:7: not valid YAML: 'x' is no bool"),
        ("name: 2026-02-30\n", "my.yaml:1:7: not valid YAML: '2026-02-30' is no timestamp"),
        ("name: !!timestamp x\n", "my.yaml:1:7: not valid YAML: 'x' is no timestamp"),
        ("name: !!binary x\n", "my.yaml:1:7: not valid YAML: "),
        (f"name: {'9' * 5000}\n", "is no int"),
        (f"name: {'9' * 400}{':59' * 400}.0\n", "is no float"),
        ("name: a\n[1, 2]: b\n", "my.yaml:2:1: "),
        ("name: a\n? {b: c}\n: d\n", "my.yaml:2:3: "),
        ("name: a\x00b\n", "not valid YAML"),
        ("name: \ud800\n", "not valid YAML"),
    ],
)
def test_what_would_hang_or_break_the_reader_is_refused_where_it_stands(text, expected):
    found = complaint(text)
    assert found.startswith("my.yaml:")
    assert expected in found
    assert len(found) <= MOST_CHARACTERS


def test_aliases_within_the_limits_are_read():
    text = "name: a\nparts:\n  one: &one {seconds: 1}\n  two: *one\n"
    assert parse_yaml(text, Outer, source="my.yaml").parts["two"] == Inner(seconds=1.0)


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(yaml_file, "MAX_BYTES", 100)
    (tmp_path / "large.yaml").write_text("name: " + "a" * 95)
    with pytest.raises(ConfigError, match=r"large\.yaml: cannot be read \(larger than the 100 bytes"):
        load_yaml(tmp_path / "large.yaml", Outer)


def test_more_values_than_a_file_may_hold_are_refused(monkeypatch):
    monkeypatch.setattr(yaml_file, "MAX_NODES", 100)
    assert "more than 100 values" in complaint("[" + "1, " * 250 + "]")


def test_numbers_of_our_own_files_are_finite():
    class Strict(StrictModel):
        seconds: float

    for number in (".inf", "-.inf", ".nan", "1.0e+999"):
        with pytest.raises(ConfigError, match=r"my\.yaml:1:10: seconds: Input should be a finite number"):
            parse_yaml(f"seconds: {number}\n", Strict, source="my.yaml")


@pytest.mark.parametrize("content", [None, b"\xff\xfe name"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "some.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"some\.yaml: cannot be read"):
        load_yaml(path, Outer)


def test_saving_keeps_the_order_and_leaves_no_scratch_file(tmp_path):
    path = tmp_path / "folder" / "saved.yaml"
    save_yaml({"b": 1, "a": [2]}, path)
    assert path.read_text() == "b: 1\na:\n- 2\n"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "folder").write_text("not a folder")
    with pytest.raises(ConfigError, match=r"saved\.yaml: cannot be written"):
        save_yaml({}, tmp_path / "folder" / "saved.yaml")


def test_lines_of_values_or_of_what_is_around_them(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("# a comment\na:\n  b: 1\n  c:\n    - x\n    - {d: 2}\n")
    locations = [("a", "b"), ("a", "c", 1, "d"), ("a", "c", 1, "e"), ("a", "z"), ()]
    assert lines_of(path, locations) == [3, 6, 6, 3, 2]


class Draft(StrictModel):
    kind: Literal["draft"] = "draft"
    windows: int = 1


class Exit(StrictModel):
    kind: Literal["exit"] = "exit"
    width: int = 1


class Recipe(RootModel[Annotated[Draft | Exit, Field(discriminator="kind")]]):
    pass


@pytest.mark.parametrize(
    ("text", "model", "told"),
    [
        ("name: a\ncolour: b", Outer, "'colour'; there are name, parts, pairs)"),
        ("name: a\nparts: {x: {seconds: 1.0, row: []}}", Outer, "'row'; there are seconds, rows)"),
        ("name: a\npairs: [{seconds: 1.0, second: 2}]", Outer, "'second'; there are seconds, rows)"),
        ("kind: exit\nwidht: 2", Recipe, "'widht'; there are kind, width)"),
    ],
)
def test_a_field_that_is_not_known_is_told_with_those_that_are(text, model, told):
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, model, source="my.yaml")
    assert f"(no field is called {told}" in str(caught.value)


def test_a_number_that_would_take_minutes_to_read_is_refused():
    with pytest.raises(ConfigError, match="2:8: not valid YAML: what has more than 400 digits is no int"):
        parse_yaml(f"name: a\nparts: {':'.join('1' * 9000)}\n", Outer, source="my.yaml")
