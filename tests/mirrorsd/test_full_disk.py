"""A disk that gets full in the middle of a file: the error names it, what was there stays, and nothing else is left."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from decoding.errors import ConfigError, MirrorsdError
from decoding.schedule import Schedule, save_schedule
from decoding.yaml_file import write_atomically
from hwprofiles.profile import save_profile
from mirrorsd.compare.runs import save_traces
from mirrorsd.run_file import RunFile
from planner.chrome_trace import save_chrome_trace
from sim.world import simulate
from tests.planner.synthetic import acceptance_record, machine

SCHEDULE = Schedule(method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=2)
RECORD = acceptance_record(num_prompts=2, num_tokens=24)


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Let the system refuse what is longer, as it does where a disk is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    "save",
    [
        RECORD.save,
        lambda path: save_profile(machine(), path),
        lambda path: save_schedule(SCHEDULE, path),
        lambda path: save_traces([simulate(SCHEDULE, machine(), RECORD)], path),
        lambda path: save_chrome_trace({"simulated": simulate(SCHEDULE, machine(), RECORD)[0]}, path),
        lambda path: write_atomically(path, "a report\n" * 100),
    ],
    ids=["record", "profile", "schedule", "traces", "chrome trace", "report"],
)
@pytest.mark.parametrize("num_bytes", [0, 50])
def test_what_cannot_be_written_whole_leaves_what_was_there(tmp_path, save, num_bytes):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with files_of_at_most(num_bytes), pytest.raises(MirrorsdError, match=f"{path}: .*cannot be written .*too large"):
        save(path)
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"old"]
    save(path)
    assert path.read_bytes() != b"old"


def test_a_row_that_cannot_be_written_whole_leaves_those_before_it(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RunFile(path, {}) as rows:
        rows.append({"prompt_id": "one", "text": "a"})
        before = path.read_bytes()
        with files_of_at_most(len(before) + 20), pytest.raises(ConfigError, match="a row cannot be written .* whole"):
            rows.append({"prompt_id": "two", "text": "a" * 100})
        assert path.read_bytes() == before
        rows.append({"prompt_id": "two", "text": "b"})
    assert len(path.read_text().splitlines()) == 2
