import gzip
import json

import pytest

from decoding.errors import TrainingError
from training.data import states
from training.data.states import Conversation, fingerprint, most_frequent_ids, read_conversations, with_held_out

GOOD = {"prompt": [1, 2], "answer": [3, 4, 2], "temperature": 0.8}


def write(path, lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_conversations_are_read_in_the_order_of_files_and_lines(tmp_path):
    first = write(tmp_path / "a.jsonl", [json.dumps(GOOD), " ", json.dumps({"prompt": [5], "answer": [6]})])
    second = tmp_path / "b.jsonl.GZ"
    second.write_bytes(gzip.compress(json.dumps({"prompt": [7], "answer": [8]}).encode()))
    assert read_conversations([first, second], vocab_size=9) == [
        Conversation((1, 2), (3, 4, 2), 0.8),
        Conversation((5,), (6,), 0.0),
        Conversation((7,), (8,), 0.0),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "expected an object"),
        ('{"prompt": [1]}', "expected an object .*answer"),
        ('{"prompt": 3, "answer": [1]}', "expected an object"),
        ('{"prompt": [1], "answer": []}', "'prompt' and 'answer' must not be empty"),
        ('{"prompt": [1], "answer": [9]}', r"9 is not a token id of the target \(0\.\.8\)"),
        ('{"prompt": [-1], "answer": [1]}', "-1 is not a token id"),
        ('{"prompt": [true], "answer": [1]}', "True is not a token id"),
        ('{"prompt": "hi", "answer": [1]}', "expected an object with token lists .*found no list"),
        ("[" * 100_000, "expected an object .*nested too deep"),
        ('{"prompt": [1], "answer": [2], "temperature": NaN}', "expected an object .*NaN"),
        ('{"prompt": [1], "answer": [2], "temperature": -1}', "'temperature' should be a number of at least 0"),
        (f'{{"prompt": [1], "answer": [2], "temperature": {"9" * 400}}}', "expected an object"),
        (f'{{"prompt": [1], "answer": [{"9" * 900}]}}', "9+.* is not a token id"),
    ],
)
def test_a_damaged_line_is_named_by_file_and_number(tmp_path, line, message):
    path = write(tmp_path / "data.jsonl", [json.dumps(GOOD), line])
    with pytest.raises(TrainingError, match=rf"data\.jsonl:2: {message}"):
        read_conversations([path], vocab_size=9)


def test_a_compressed_file_that_was_cut_off_is_named(tmp_path):
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join([json.dumps(GOOD).encode()] * 500))[:-20])
    with pytest.raises(TrainingError, match=r"data\.jsonl\.gz: cannot be read beyond line \d+"):
        read_conversations([path], vocab_size=9)


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(states, "MAX_LINE_CHARACTERS", 1000)
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(GOOD).encode() + b"\n" + b" " * 1_000_000))
    with pytest.raises(TrainingError, match="beyond line 1 .the next has more than 1,000 characters"):
        read_conversations([path], vocab_size=9)


def test_a_missing_or_empty_file_is_named(tmp_path):
    with pytest.raises(TrainingError, match=r"absent\.jsonl: cannot be read \(.*No such file"):
        read_conversations([tmp_path / "absent.jsonl"], vocab_size=9)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(TrainingError, match=r"empty\.jsonl: no conversation found"):
        read_conversations([empty], vocab_size=9)


def test_a_conversation_longer_than_the_targets_positions_is_named(tmp_path):
    path = write(tmp_path / "data.jsonl", [json.dumps({"prompt": [1], "answer": [2]}), json.dumps(GOOD)])
    assert len(read_conversations([path], vocab_size=9, max_tokens=5)) == 2
    with pytest.raises(TrainingError, match=r"data\.jsonl:2: 5 tokens are more than the target's 4 positions"):
        read_conversations([path], vocab_size=9, max_tokens=4)


def test_the_last_conversations_are_held_out():
    rows = [Conversation((index,), (0,)) for index in range(5)]
    assert with_held_out(rows, 2) == rows
    for count in (0, 5, 6):
        with pytest.raises(TrainingError, match=f"num_held_out {count} .* there are 5 conversations"):
            with_held_out(rows, count)


def test_nothing_is_trained_on_that_asks_what_held_out_conversations_ask():
    rows = [Conversation((index,), (9,)) for index in (1, 2, 3)]
    resampled = Conversation((2,), (8, 7))
    assert with_held_out([*rows, resampled, rows[2], *rows[1:]], 2) == [rows[0], *rows[1:]]
    assert with_held_out([rows[0], *rows], 2) == [rows[0], *rows], "other conversations may come twice"
    with pytest.raises(TrainingError, match="num_held_out 3 leaves nothing .*one with another prompt"):
        with_held_out(rows * 2, 3)


def test_the_ids_that_answers_use_most_are_kept():
    rows = [Conversation((9, 9, 9, 9), (5, 5, 5, 7, 7)), Conversation((9,), (7, 5, 3, 4))]
    assert most_frequent_ids(rows, 2) == [5, 7]
    assert most_frequent_ids(rows, 3) == [3, 5, 7], "of ids used equally often the lower one is kept"
    assert most_frequent_ids(rows, 3, always=[8]) == [5, 7, 8]
    assert most_frequent_ids(rows, 6) == [0, 1, 3, 4, 5, 7], "places left over go to the lowest ids"


def test_the_fingerprint_knows_where_prompts_end_and_nothing_of_temperatures():
    row = Conversation((1, 2), (3,), 0.0)
    assert fingerprint([row]) == fingerprint([row._replace(temperature=0.8)])
    assert fingerprint([row]) != fingerprint([Conversation((1,), (2, 3), 0.0)])
    assert fingerprint([row, row]) != fingerprint([row])
