import json
import os
import resource
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from decoding.errors import ConfigError
from mirrorsd.run_file import RunFile

ANSWER = {"token_ids": [1, 2], "num_rounds": 1, "prefill_s": 0.1, "decode_s": 0.2}
SETTINGS = {"dtype": "float32", "seed": 0, "schedule": {"method": "autoregressive", "target_lane": "target"}}


@pytest.fixture
def path(tmp_path):
    """Of a run's file with the row of one prompt."""
    path = tmp_path / "rows.jsonl"
    with RunFile(path, SETTINGS) as rows:
        rows.append({"prompt_id": "a"} | ANSWER)
    return path


def test_a_second_run_knows_what_is_done_and_adds_behind_it(tmp_path):
    """Rows carry the settings that made them; what ends a line elsewhere does not end a row."""
    path, answer = tmp_path / "deep" / "rows.jsonl", {"text": "one\u2028two\x85three\nfour"} | ANSWER
    with RunFile(path, SETTINGS) as rows:
        rows.append({"prompt_id": "a"} | answer)
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    with RunFile(path, SETTINGS) as rows:
        assert list(rows.rows) == ["a"], "a row that lacks nothing but its end is kept"
        rows.append({"prompt_id": "b"} | answer)
        assert rows.rows == {name: {"prompt_id": name} | answer for name in "ab"}
    written = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    assert written == [{"prompt_id": name, "settings": SETTINGS} | answer for name in "ab"]


@pytest.mark.parametrize("half", [b"{", b'{"prompt_id": "b', b'{"prompt_id": "b", "token_i'])
def test_half_a_row_at_the_end_is_cut_off(path, half):
    whole = path.read_bytes()
    path.write_bytes(whole + half)
    with RunFile(path, SETTINGS) as rows:
        assert list(rows.rows) == ["a"]
    assert path.read_bytes() == whole


def test_of_another_schedule_only_what_differs_is_told(path):
    other = {"method": "speculative", "target_lane": "target", "draft_lane": "draft"}
    told = r"other settings \(method 'autoregressive', not 'speculative', draft_lane None, not 'draft'\); name"
    with pytest.raises(ConfigError, match=told):
        RunFile(path, SETTINGS | {"schedule": other})


DIGESTS = {"target_files": "a", "drafter_files": "b"}


@pytest.mark.parametrize("known", [(), ("target_files",)])
def test_rows_without_digests_are_told_to_have_none_and_not_to_be_of_other_files(tmp_path, known):
    path = tmp_path / "rows.jsonl"
    with RunFile(path, SETTINGS | {name: DIGESTS[name] for name in known}) as rows:
        rows.append({"prompt_id": "a"} | ANSWER)
    before, told = path.read_bytes(), "has no digests of the files behind it: an earlier version wrote it"
    with pytest.raises(ConfigError, match=f"^{path}:1: {told}; name another --out, or delete the file$"):
        RunFile(path, SETTINGS | DIGESTS)
    with pytest.raises(ConfigError, match=r"other settings \(dtype 'float32', not 'int8'\)"):
        RunFile(path, SETTINGS | DIGESTS | {"dtype": "int8"})
    assert path.read_bytes() == before


@contextmanager
def full_after(num_bytes):
    """Files of this process may grow to so many bytes: what a full disk looks like to a program."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 7])
def test_a_full_disk_leaves_the_rows_before_it_and_nothing_of_the_one_that_does_not_fit(path, room):
    whole = path.read_bytes()
    with RunFile(path, SETTINGS) as rows:
        complaint = r"rows\.jsonl: a row cannot be written .*; those before it are whole"
        with full_after(len(whole) + room), pytest.raises(ConfigError, match=complaint):
            rows.append({"prompt_id": "b"} | ANSWER)
    assert path.read_bytes() == whole
    assert list(rows.rows) == ["a"]


def test_a_file_of_other_settings_is_refused_with_the_difference(path):
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"rows\.jsonl:1: .*other settings \(seed 0, not 7\).*another --out"):
        RunFile(path, SETTINGS | {"seed": 7})
    assert path.read_bytes() == before


@pytest.mark.parametrize(("temperature", "is_drawn"), [(0.0, False), (0.5, True)])
def test_another_seed_is_another_setting_where_something_is_drawn(tmp_path, temperature, is_drawn):
    path, given = tmp_path / "rows.jsonl", SETTINGS | {"temperature": temperature}
    with RunFile(path, given) as rows:
        rows.append({"prompt_id": "a"} | ANSWER)
    refused = pytest.raises(ConfigError, match=r"other settings \(seed 0, not 7\)") if is_drawn else nullcontext()
    with refused, RunFile(path, given | {"seed": 7}) as rows:
        assert list(rows.rows) == ["a"]


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("line", ["not json", "[1]", '{"prompt_id": "a"}', '{"precious": 1}', '{"prompt": "half of'])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, line, end):
    path = tmp_path / "notes.jsonl"
    path.write_text(line + end)
    with pytest.raises(ConfigError, match=r"notes\.jsonl:1: not a row"):
        RunFile(path, SETTINGS)
    assert path.read_text() == line + end


def test_two_runs_do_not_write_one_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RunFile(path, SETTINGS) as rows:
        with pytest.raises(ConfigError, match=r"rows\.jsonl: another run is writing it"):
            RunFile(path, SETTINGS)
        rows.append({"prompt_id": "a"} | ANSWER)
    with RunFile(path, SETTINGS) as rows:
        assert list(rows.rows) == ["a"]


def test_rows_are_not_written_where_they_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="is not a regular file"):
        RunFile(Path(os.devnull), SETTINGS)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_rounds": 0}, "num_rounds: "),
        ({"decode_s": -1}, "decode_s: "),
        ({"num_rounds": 3}, "num_rounds is 3, more than its 2 tokens"),
        ({"decode_s": 1e9}, "decode_s: "),
        ({"token_ids": []}, "token_ids: "),
        ({"decode_s": float("nan")}, "NaN is no number of JSON"),
        ({"num_rounds": 10**400}, "num_rounds: "),
        ({"decode_s": "0.2"}, "decode_s: "),
        ({"text": "\ud800"}, "half a pair of surrogates"),
        ({"prefill_s": 10**400}, "prefill_s: "),
        ({"prompt_hash": [1]}, "prompt_hash: "),
        ({"events": "it hung"}, "events: "),
    ],
)
def test_a_damaged_row_is_refused_before_anything_is_run(tmp_path, changes, complaint):
    path = tmp_path / "rows.jsonl"
    row = {"prompt_id": "a", "settings": SETTINGS} | ANSWER | changes
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=rf"rows\.jsonl:1: not a row that `mirrorsd run` wrote \(.*{complaint}"):
        RunFile(path, SETTINGS)


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=str(tmp_path)):
        RunFile(tmp_path, SETTINGS)
