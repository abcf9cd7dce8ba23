"""A profile or a record of another machine is named before anything rests on it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from decoding.recorded.prompt_record import hash_of_ids
from decoding.schedule import Schedule, save_schedule
from hwprofiles.host import computing_host, describe_host
from hwprofiles.profile import save_profile
from tests.mirrorsd.cli.calls import call
from tests.planner.synthetic import acceptance_record, machine

VERBS = {
    "search": ("--space", "space.yaml", "--json"),
    "simulate": ("--schedule", "best.yaml", "--json"),
    "validate": ("--schedule", "best.yaml"),
}


@pytest.fixture
def evidence(tmp_path, monkeypatch):
    """Writes profile and record of machines that differ from this one so; returns the options that name them."""
    monkeypatch.chdir(tmp_path)

    def write(of_profile, of_record):
        save_profile(machine().model_copy(update={"host": describe_host() | of_profile}), "profile.yaml")
        record = acceptance_record(num_prompts=3, num_tokens=40)
        hashed = (replace(one, prompt_hash=hash_of_ids([place])) for place, one in enumerate(record.prompts))
        replace(record, prompts=tuple(hashed), host=computing_host("cpu") | of_record).save("record.npz")
        options = ("--profile", "profile.yaml", "--record", "record.npz")
        save_schedule(Schedule(method="autoregressive", target_lane="both"), Path("best.yaml"))
        Path("space.yaml").write_text("methods: [autoregressive]\n")
        return options

    return write


@pytest.mark.parametrize("verb", VERBS)
def test_another_processor_is_named_and_this_one_is_not(evidence, verb) -> None:
    here = call(verb, *evidence({"memory_gb": 1.0, "cores": describe_host()["cores"][::-1]}, {}), *VERBS[verb])
    assert "another machine" not in here.stderr
    said = call(verb, *evidence({"cpu_model": "A Xeon"}, {"torch": "0.1"}), *VERBS[verb])
    there = said.stderr
    assert "The profile is of another machine (processor A Xeon, here " in there
    assert "The record was made on another machine (PyTorch 0.1, here " in there
    assert ("of this one" in there) == (verb == "validate")
    if "--json" in VERBS[verb]:
        warnings = json.loads(said.stdout)["warnings"]
        assert [one.partition(" (")[0] for one in warnings[:2]] == [
            "The profile is of another machine",
            "The record was made on another machine",
        ]
