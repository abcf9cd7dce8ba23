"""A tiny random model with a tokenizer, its drafter and its exits, as folders that a user could have."""

import json

import pytest
import tokenizers

from decoding.schedule import Schedule, save_schedule
from tests.runtime.drafters.folders.kinds import save_head
from tests.runtime.tiny_folders import save_all
from tests.tiny_models import EOS, VOCAB_SIZE, tiny_target

SIX_NODES = ((0,), (1,), (0, 0), (2,), (0, 1), (1, 0))


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory):
    folders = save_all(tiny_target(max_position=512), tmp_path_factory.mktemp("tiny"))
    words = {f"w{index}": index for index in range(VOCAB_SIZE)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w1"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([f"w{EOS}"])
    backend.save(str(folders.target / "tokenizer.json"))
    return folders


@pytest.fixture(scope="session")
def head_folders(tiny_folders):
    """Heads and streams of the tiny model."""
    target, root = tiny_folders.decoder, tiny_folders.target.parent
    save_head("medusa", target, root / "medusa", paths=SIX_NODES)
    save_head("eagle1", target, root / "eagle", feature_layers=())
    save_head("streams", target, root / "streams", paths=SIX_NODES)
    return {name: root / name for name in ("medusa", "eagle", "streams")}


@pytest.fixture(scope="session")
def lane_names():
    """Names of this machine's lanes: one for the target, one for the draft where there are two cores."""
    from hwprofiles.host import lanes_of

    names = [lane.name for lane in lanes_of("cpu")]
    return names[0], names[1] if len(names) > 1 else names[0]


@pytest.fixture
def schedule_file(tmp_path, tiny_folders, lane_names):
    """Writes a schedule on this machine's lanes and returns its path."""
    target_lane, draft_lane = lane_names

    def write(name="schedule", **fields):
        if fields.get("method", "speculative") != "autoregressive":
            drafting = {"draft_lane": draft_lane, "drafter": str(tiny_folders.drafter), "num_speculative_tokens": 3}
            fields = {"method": "speculative"} | drafting | fields
        path = tmp_path / f"{name}.yaml"
        save_schedule(Schedule(target_lane=target_lane, **fields), path)
        return path

    return write


@pytest.fixture
def prompt_file(tmp_path):
    """Writes prompts of words w0..w60, one a row, and returns the path."""

    def write(*texts, name="prompts"):
        path = tmp_path / f"{name}.jsonl"
        rows = [{"prompt_id": f"p{index}", "prompt": text} for index, text in enumerate(texts)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write
