import dataclasses
import hashlib
import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decoding.record
from decoding.errors import RecordError
from decoding.record import AcceptanceRecord, PromptRecord, RecordedTree
from decoding.recorded.prompt_record import hash_of_ids
from decoding.schedule import Schedule

STATIC = RecordedTree(method="medusa", drafter="heads", depth=2, paths=((0,), (1,), (0, 0)))
DYNAMIC = RecordedTree(method="eagle2", drafter="layer", depth=3, top_k=4)


def ids(*rows: object) -> np.ndarray:
    return np.array(rows, dtype=np.int32)


def prompt(**changes: Any) -> PromptRecord:
    """Three tokens of text, windows of two, one exit."""
    fields: dict[str, Any] = {
        "name": "a prompt",
        "category": "maths",
        "prompt_length": 5,
        "text": ids(10, 11, 12),
        "rollouts": ids([10, 11], [11, 0], [0, 12]),
        "feature_rollouts": np.zeros((0, 2), dtype=np.int32),
        "alternatives": ids([10, 1], [11, 2], [0, 3]),
        "exits": {4: ids([1, 2, 3], [1, 2, 3], [12, 2, 3])},
    }
    return PromptRecord(**fields | changes)


def record(*prompts: PromptRecord, **changes: Any) -> AcceptanceRecord:
    fields: dict[str, Any] = {
        "target": "t",
        "drafter": "d",
        "dtype": "bfloat16",
        "max_window": 2,
        "max_new_tokens": 3,
        "exit_layers": (4,),
        "feature_layers": (2, 3),
        "prompts": prompts or (prompt(),),
    }
    return AcceptanceRecord(**fields | changes)


def assert_same(found: PromptRecord, expected: PromptRecord) -> None:
    for field in dataclasses.fields(PromptRecord):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "exits":
            assert one.keys() == other.keys()
            assert all((one[layer] == other[layer]).all() for layer in one)
        elif field.name == "tree_ranks":
            assert [ranks.tolist() for ranks in one] == [ranks.tolist() for ranks in other]
        elif isinstance(one, np.ndarray):
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            assert (one == other).all()
        else:
            assert one == other


def test_records_are_equal_where_all_their_arrays_are():
    ranks = ids([0, 1, 2], [0, 1, -1], [0, -1, -1])
    one, same = (record(prompt(tree_ranks=(ranks.copy(),)), trees=(DYNAMIC,)) for _ in range(2))
    assert (one == same, len({one, same})) == (True, 1)
    for changes in (
        {"text": ids(10, 11, 13)},
        {"exits": {4: ids([1, 2, 3], [1, 2, 3], [12, 2, 4])}},
        {"tree_ranks": (ranks + 1,)},
        {"category": "code"},
    ):
        assert one.prompts[0] != prompt(**{"tree_ranks": (ranks,)} | changes)
    assert one.prompts[0] != "a prompt"


def test_a_file_brings_the_record_back(tmp_path):
    ranks = ids([0, 2], [3, 1], [-1, 0]), ids([0, 1, 2], [0, 1, -1], [0, -1, -1])
    margins = np.array([1, 2, 3], dtype=np.float32)
    with_features = prompt(
        name="another", feature_rollouts=ids([10, 11], [1, 2], [3, 4]), margins=margins, tree_ranks=ranks
    )
    written = record(prompt(tree_ranks=ranks), with_features, host={"cpu_model": "A Xeon"}, trees=(STATIC, DYNAMIC))
    written.save(tmp_path / "folder" / "record.npz")
    read = AcceptanceRecord.load(tmp_path / "folder" / "record.npz")
    for one, other in zip(read.prompts, written.prompts, strict=True):
        assert_same(one, other)
    assert dataclasses.replace(read, prompts=()) == dataclasses.replace(written, prompts=())
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["record.npz"]


def header_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(np.load(path)["header"].tobytes())
    return found


def test_a_record_of_another_back_end_says_so(tmp_path):
    by_torch, compiled = record(), record(backend="openvino:CPU", dtype="int8")
    assert (by_torch.numeric_form, compiled.numeric_form) == ("torch bfloat16", "openvino:CPU int8")
    for one in (by_torch, compiled):
        one.save(tmp_path / f"{one.dtype}.npz")
        assert AcceptanceRecord.load(tmp_path / f"{one.dtype}.npz").backend == one.backend


def test_which_tokens_a_prompt_had_is_known_of_records_that_say_so(tmp_path):
    known = prompt(name="known", prompt_hash=hash_of_ids((5, 6, 7)))
    record(known, prompt(name="unknown")).save(tmp_path / "record.npz")
    assert [entry.prompt_hash for entry in AcceptanceRecord.load(tmp_path / "record.npz").prompts] == [
        hashlib.sha256(b"\5\0\0\0\6\0\0\0\7\0\0\0").hexdigest(),
        None,
    ]
    assert ["prompt_hash" in row for row in header_of(tmp_path / "record.npz")["prompts"]] == [True, False]


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 999))
@settings(deadline=None)
def test_match_lengths_by_the_definition(num_tokens, width, seed):
    random = np.random.default_rng(seed)
    text, rollouts = random.integers(0, 2, num_tokens), random.integers(0, 2, (num_tokens, width))
    one = prompt(text=text.astype(np.int32), rollouts=rollouts.astype(np.int32))
    for start, length in enumerate(one.match_lengths(with_features=False).tolist()):
        following = text[start : start + width].tolist()
        assert rollouts[start, :length].tolist() == following[:length]
        assert length == len(following) or rollouts[start, length] != following[length]


def test_rollouts_with_features_must_have_been_recorded():
    with pytest.raises(RecordError, match="record of 'a prompt' has no rollouts with exit features"):
        prompt().drafts(with_features=True)
    featured = prompt(feature_rollouts=ids([1, 2], [3, 4], [5, 6]))
    assert featured.drafts(with_features=True).tolist() == [[1, 2], [3, 4], [5, 6]]


def test_a_schedule_finds_its_trees():
    fields = {"target_lane": "t", "draft_lane": "t", "tree_size": 8}
    eagle = Schedule(method="eagle2", drafter="layer", num_speculative_tokens=3, tree_top_k=4, **fields)
    trees = record(prompt(tree_ranks=(ids([0, 2], [3, 1], [-1, 0]), ids(*[[0, 0, 0]] * 3))), trees=(STATIC, DYNAMIC))
    assert trees.tree(eagle) == 1
    with pytest.raises(RecordError, match="trees of eagle2 of layer, 2 deep were not recorded; .* medusa of heads"):
        trees.tree(eagle.model_copy(update={"num_speculative_tokens": 2}))
    with pytest.raises(RecordError, match="trees it holds: none"):
        record().tree(eagle)


def test_trees_must_fit_the_text():
    with pytest.raises(RecordError, match="drafts of 0 trees, not 1"):
        record(trees=(STATIC,))
    with pytest.raises(RecordError, match=r"tree_ranks of heads has shape \(3, 1\), not \(3, 2\)"):
        record(prompt(tree_ranks=(ids([0], [0], [0]),)), trees=(STATIC,))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"prompt_length": 0}, "prompt_length is 0, not at least 1"),
        ({"rollouts": ids([1, 2], [3, 4])}, r"rollouts has shape \(2, 2\), not \(3, 2\)"),
        ({"rollouts": ids([1], [2], [3])}, r"rollouts has shape \(3, 1\), not \(3, 2\)"),
        ({"rollouts": ids([1, 2, 3], [2, 3, 4], [3, 4, 5])}, r"rollouts has shape \(3, 3\), not \(3, 2\)"),
        ({"feature_rollouts": ids([1, 2])}, r"feature_rollouts has shape \(1, 2\)"),
        ({"alternatives": ids(1, 2, 3)}, r"alternatives has shape \(3,\)"),
        ({"exits": {}}, "no exit after layer 4"),
        ({"exits": {4: ids([1, 2])}}, r"exits\[4\] has shape \(1, 2\)"),
        ({"stream_hits": ids([1, 0], [-1, 0], [0, 0])}, "stream_hits hold -1, which is no number of guesses"),
        ({"feature_stream_hits": ids([0, -2], [0, 0], [0, 0])}, "feature_stream_hits hold -2"),
        ({"stream_hits": ids([1], [2], [3])}, r"stream_hits has shape \(3, 1\), not \(3, 2\)"),
        ({"feature_stream_hits": ids([1, 2])}, r"feature_stream_hits has shape \(1, 2\)"),
        ({"text": ids(*range(4))}, "4 tokens of text, more than max_new_tokens 3"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(changes, complaint):
    with pytest.raises(RecordError, match=f"record of 'a prompt': {complaint}"):
        record(prompt(**changes))


def test_a_draft_with_streams_has_its_guesses_recorded(tmp_path):
    with pytest.raises(RecordError, match=r"stream_hits has shape \(0, 0\)"):
        record(num_streams=2)
    known = {"stream_hits": ids([1, 0], [2, 0], [0, 0]), "feature_rollouts": ids([1, 2], [3, 4], [5, 6])}
    with pytest.raises(RecordError, match=r"stream_hits has shape \(0, 0\)"):
        record(prompt(**known), num_streams=2)
    hits = ids([1, 0], [2, 0], [0, 0])
    whole = record(prompt(stream_hits=hits), num_streams=2)
    whole.save(tmp_path / "record.npz")
    again = AcceptanceRecord.load(tmp_path / "record.npz")
    assert again.num_streams == 2
    assert again.prompts[0].stream_hits.tolist() == hits.tolist()


def test_a_missing_or_damaged_file_is_named(tmp_path):
    path, complaint = tmp_path / "some.npz", r"some\.npz: not a readable acceptance record \("
    with pytest.raises(RecordError, match=complaint):
        AcceptanceRecord.load(path)
    for content in (b"", b"no archive at all"):
        path.write_bytes(content)
        with pytest.raises(RecordError, match=rf"{complaint}it is no \.npz file, or "):
            AcceptanceRecord.load(path)


def test_another_format_is_refused(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, header=np.frombuffer(b'{"format": "something else"}', dtype=np.uint8))
    with pytest.raises(
        RecordError, match=r"other\.npz: not an acceptance record of format mirrorsd-acceptance-record-5"
    ):
        AcceptanceRecord.load(path)


def test_pickled_objects_are_not_unpickled(tmp_path):
    path = tmp_path / "pickled.npz"
    np.savez(path, header=np.array([{"format": "x"}], dtype=object))
    with pytest.raises(RecordError, match="not a readable acceptance record"):
        AcceptanceRecord.load(path)


def test_a_record_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "folder").write_text("not a folder")
    with pytest.raises(RecordError, match=r"record\.npz: cannot be written"):
        record().save(tmp_path / "folder" / "record.npz")


def rewritten(path: Path, **changes: object) -> Path:
    """A record's file with other arrays, or another header."""
    record(prompt()).save(path)
    with np.load(path) as found:
        arrays = dict(found)
    header = json.loads(arrays["header"].tobytes()) | changes.pop("header", {})
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez(path, **arrays | changes)
    return path


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"0.rollouts": np.zeros((3, 2), dtype=[("a", "i4"), ("b", "f4")])}, "0.rollouts holds values of type "),
        ({"0.text": np.array([0.5, 1.5, 2.5])}, "0.text holds values of type float64, not ids"),
        ({"0.text": np.array([1, 2, 2**40])}, "0.text holds ids of more than 32 bits"),
        ({"0.text": np.zeros((3, 1), dtype=np.int32)}, "0.text has 2 dimensions"),
        ({"0.margins": np.array([1.0, np.nan, 1.0])}, "0.margins holds numbers that are not finite"),
        ({"0.margins": np.ones(2)}, "margins has shape (2,), not (3,)"),
        ({"0.alternatives": np.zeros(3, dtype=np.int32)}, "0.alternatives has 1 dimensions"),
        ({"header": {"max_window": "2"}}, "max_window: Input should be a valid integer, found '2'"),
        ({"header": {"max_new_tokens": -1}}, "max_new_tokens: "),
        ({"header": {"trees": [{"method": "no such"}]}}, "trees.0.method: "),
        ({"header": {"prompts": [{"name": "a", "category": "", "prompt_length": 0}]}}, "prompts.0.prompt_length: "),
        (
            {
                "header": {
                    "prompts": [{"name": "a", "category": "", "prompt_length": 1, "prompt_hash": "0" * 64 + "\n"}]
                }
            },
            "prompts.0.prompt_hash: ",
        ),
    ],
)
def test_a_file_that_holds_something_else_is_refused_with_its_place(tmp_path, changes, complaint):
    path = rewritten(tmp_path / "record.npz", **changes)
    with pytest.raises(RecordError) as caught:
        AcceptanceRecord.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert complaint in str(caught.value)


def test_a_tree_whose_nodes_have_no_parents_is_refused(tmp_path):
    ranks = (ids([0, 2], [3, 1], [-1, 0]),)
    written = record(prompt(tree_ranks=ranks), trees=(STATIC.model_copy(update={"paths": ((0,), (1, 0))}),))
    written.save(tmp_path / "record.npz")
    with pytest.raises(RecordError, match=r"trees\.0\.paths: .*comes before its parent"):
        AcceptanceRecord.load(tmp_path / "record.npz")


def test_arrays_that_would_fill_the_memory_are_not_unpacked(tmp_path, monkeypatch):
    record(prompt()).save(tmp_path / "record.npz")
    monkeypatch.setattr(decoding.record, "MAX_BYTES", 1000)
    for call in (AcceptanceRecord.load, record(prompt()).save):
        with pytest.raises(RecordError, match="its arrays have .* bytes; at most 1,000 are read"):
            call(tmp_path / "record.npz")


@pytest.mark.parametrize("limit", ["MAX_BYTES", "MAX_HEADER_BYTES"])
def test_what_is_too_large_to_be_read_is_not_written(tmp_path, monkeypatch, limit):
    two = record(prompt(), prompt(name="another one"))
    size = two.file_size
    two.save(tmp_path / "record.npz")
    with zipfile.ZipFile(tmp_path / "record.npz") as file:
        entries = {entry.filename: entry.file_size for entry in file.infolist()}
    assert size.arrays == sum(entries.values())
    assert size.header == entries["header.npy"] - 128
    most = {"MAX_BYTES": size.arrays, "MAX_HEADER_BYTES": size.header}[limit]
    monkeypatch.setattr(decoding.record, limit, most)
    two.save(tmp_path / "full.npz")
    assert len(AcceptanceRecord.load(tmp_path / "full.npz").prompts) == 2
    monkeypatch.setattr(decoding.record, limit, most - 1)
    with pytest.raises(
        RecordError, match=rf"more\.npz: its (arrays|header) have {most:,} bytes; at most {most - 1:,} are"
    ):
        two.save(tmp_path / "more.npz")
    assert not (tmp_path / "more.npz").exists()


def test_texts_that_repeat_one_token_are_read_however_well_they_pack(tmp_path):
    """As of a target that loops: only bombs are thought to unpack to a hundred times their size."""
    alike = {"text": 5_000, "rollouts": (5_000, 30), "alternatives": (5_000, 30)}
    arrays = {name: np.full(shape, 7, dtype=np.int32) for name, shape in alike.items()}
    looping = prompt(**arrays, feature_rollouts=ids()[:0].reshape(0, 30), exits={4: np.full((5_000, 9), 7, np.int32)})
    made = record(looping, max_window=30, max_new_tokens=5_000)
    made.save(tmp_path / "record.npz")
    assert_same(AcceptanceRecord.load(tmp_path / "record.npz").prompts[0], looping)


def test_a_record_reaches_from_its_shortest_prompt_to_its_longest_text_and_as_wide_as_its_narrowest_prompt():
    narrow = prompt(prompt_length=9, exits={4: ids([1, 2], [1, 2], [12, 2])}, alternatives=ids([10], [11], [0]))
    known = record(prompt(), narrow)
    assert known.contexts == range(5 - 1, 9 + 3 - 1)
    assert [known.num_candidates(layer) for layer in (4, None)] == [2, 1]


def test_a_record_without_prompts_reaches_nowhere_and_says_so():
    with pytest.raises(RecordError, match="^the record of t with d has no prompt$"):
        _ = dataclasses.replace(record(), prompts=()).contexts


def test_an_array_that_is_there_twice_is_refused(tmp_path):
    path = tmp_path / "record.npz"
    with zipfile.ZipFile(path, "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            file.writestr("header.npy", b"")
    with pytest.raises(RecordError, match="an array is there more than once"):
        AcceptanceRecord.load(path)
