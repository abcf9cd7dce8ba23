import pytest

from tests.benchmarks.scripts import load_script


@pytest.fixture(scope="module")
def script():
    return load_script("vocabulary")


def test_tokens_of_the_answers_are_counted_by_whether_vocabulary_or_prompt_has_them(script) -> None:
    texts = [script.Text("qa", (1, 9, 9), (1, 2, 9, 7)), script.Text("rag", (2, 8, 7), (8, 8))]
    found = dict(script.by_category(texts, frozenset({1, 2, 3})))
    assert found["all"] == {"kept": 0.3333, "kept_or_in_prompt": 0.8333, "rows_added_per_prompt": 1.5, "num_tokens": 6}
    assert found["qa"] == {"kept": 0.5, "kept_or_in_prompt": 0.75, "rows_added_per_prompt": 1.0, "num_tokens": 4}
    assert found["rag"] == {"kept": 0.0, "kept_or_in_prompt": 1.0, "rows_added_per_prompt": 2.0, "num_tokens": 2}
