import json

import pytest

from decoding.errors import ConfigError
from mirrorsd.run_file import RunFile

SETTINGS = {"dtype": "float32", "seed": 0, "schedule": {"method": "autoregressive", "target_lane": "target"}}


def test_rows_carry_the_settings_that_made_them(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    with RunFile(path, SETTINGS) as rows:
        rows.append({"prompt_id": "a", "token_ids": [1, 2]})
        rows.append({"prompt_id": "b", "token_ids": []})
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert written == [
        {"prompt_id": "a", "token_ids": [1, 2], "settings": SETTINGS},
        {"prompt_id": "b", "token_ids": [], "settings": SETTINGS},
    ]


def test_a_second_run_knows_what_is_done_and_adds_behind_it(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RunFile(path, SETTINGS) as rows:
        rows.append({"prompt_id": "a"})
    with RunFile(path, SETTINGS) as rows:
        assert list(rows.rows) == ["a"]
        rows.append({"prompt_id": "b"})
        assert rows.rows == {"a": {"prompt_id": "a"}, "b": {"prompt_id": "b"}}
    assert [json.loads(line)["prompt_id"] for line in path.read_text().splitlines()] == ["a", "b"]


def test_line_separators_inside_a_text_do_not_end_its_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RunFile(path, SETTINGS) as rows:
        rows.append({"prompt_id": "a", "text": "one\u2028two\x85three\nfour"})
    with RunFile(path, SETTINGS) as rows:
        assert list(rows.rows) == ["a"]


def test_half_a_row_at_the_end_is_cut_off(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RunFile(path, SETTINGS) as rows:
        rows.append({"prompt_id": "a"})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"prompt_id": "b", "token_i')
    with RunFile(path, SETTINGS) as rows:
        assert list(rows.rows) == ["a"]
    assert path.read_bytes() == whole


def test_a_file_of_other_settings_is_refused_with_the_difference(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RunFile(path, SETTINGS) as rows:
        rows.append({"prompt_id": "a"})
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"rows\.jsonl:1: .*other settings \(seed 0, not 7\).*another --out"):
        RunFile(path, SETTINGS | {"seed": 7})
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", ["not json", "[1]", '{"prompt_id": "a"}'])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, line):
    path = tmp_path / "notes.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError, match=r"notes\.jsonl:1: not a row"):
        RunFile(path, SETTINGS)
    assert path.read_text() == line + "\n"


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=str(tmp_path)):
        RunFile(tmp_path, SETTINGS)
