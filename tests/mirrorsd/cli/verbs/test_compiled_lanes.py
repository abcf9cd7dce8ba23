"""Verbs on lanes of compiled graphs: record, search, validate.

Weights are int8: no lane of torch computes with them, so nothing here can have been recorded elsewhere.
"""

import json
import shutil

import pytest

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule, save_schedule
from hwprofiles.host import lanes_of
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import save_profile
from runtime.lanes import lane_set
from tests.mirrorsd.cli.calls import call
from tests.planner.synthetic import machine
from tests.runtime.thread_lanes import ThreadLane

pytestmark = pytest.mark.skipif(len(lanes_of("cpu")) < 3, reason="a pair of lanes needs two cores, and there is one")

PROMPTS = ("w5 w17 w3 w44 w8", "w9 w9 w4", "w60 w2 w33 w12")
DEVICE = "openvino:CPU"
LANES = (f"{DEVICE}@0", f"{DEVICE}@1")
STREAMS_STAY = "streams read the KV cache, which lanes on openvino:CPU do not expose."


def profile_of(tiny_folders, head):
    """A made-up profile of lanes on the device; what is timed there is tested with calibration."""
    times, shape = machine(), {"rows": (1, 2, 4, 8, 16), "contexts": (0, 64)}
    table = LatencyTable(seconds=((1e-3, 2e-3),) * 5, source="made up", **shape)
    lanes = tuple(
        LaneProfile(
            name=name,
            device=DEVICE,
            cores=(core,),
            dispatch_s=1e-4,
            layer=table,
            lm_head=table,
            exit={2: table},
            draft_step=table,
            heads={head: table},
        )
        for core, name in enumerate(LANES)
    )
    facts = {"target": str(tiny_folders.target), "drafter": str(tiny_folders.drafter), "dtype": "int8"}
    return times.model_copy(update={"lanes": lanes, "links": (), "contention": (), "num_layers": 4, **facts})


@pytest.fixture(scope="module")
def made(tiny_folders, head_folders, tmp_path_factory):
    """The folder that everything goes to, what recording printed, and the prompts."""
    root = tmp_path_factory.mktemp("compiled")
    prompts = root / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    models = ("--target", tiny_folders.target, "--drafter", tiny_folders.drafter, "--exits", tiny_folders.exits)
    heads = ("--heads", f"{head_folders['medusa']},{head_folders['streams']}")
    sizes = ("--max-new-tokens", 10, "--max-window", 2, "--exit-layer", 2, "--threads", 1)
    save_profile(profile_of(tiny_folders, str(head_folders["medusa"])), root / "profile.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRRORSD_CACHE", str(root / "cache"))
        patch.setattr(lane_set, "Lane", ThreadLane)
        out = ("--prompts", prompts, "--out", root / "record.npz")
        said = call("record", *models, *heads, *sizes, "--dtype", "int8", "--device", DEVICE, *out)
        assert said.exit_code == 0, said.stderr
        yield root, said, prompts


@pytest.fixture(scope="module")
def files(made):
    root, _, _ = made
    return ("--profile", root / "profile.yaml", "--record", root / "record.npz")


def test_heads_are_recorded_there_and_streams_are_left_out_by_name(made, head_folders) -> None:
    root, said, _ = made
    record = AcceptanceRecord.load(root / "record.npz")
    assert record.numeric_form == "openvino:CPU int8"
    assert [tree.drafter for tree in record.trees] == [str(head_folders["medusa"])]
    left_out = f"{head_folders['streams']} is left out: {STREAMS_STAY}"
    assert left_out.replace(" ", "") in "".join(said.stdout.split())


def test_what_was_recorded_there_is_what_lanes_there_do(made, files, tiny_folders, head_folders) -> None:
    """Texts to the last token, and rounds one by one, of chains and of a head's trees."""
    root, _, prompts = made
    copied = root / "called-otherwise"
    shutil.copytree(tiny_folders.drafter, copied)
    chain = {"draft_lane": LANES[1], "drafter": str(copied), "num_speculative_tokens": 2}
    schedules = {
        "speculative": chain,
        "medusa": {
            "draft_lane": LANES[1],
            "drafter": str(head_folders["medusa"]),
            "num_speculative_tokens": 2,
            "tree_size": 4,
        },
    }
    words = []
    for method, fields in schedules.items():
        save_schedule(Schedule(method=method, target_lane=LANES[0], **fields), root / f"{method}.yaml")
        words += ["--schedule", root / f"{method}.yaml"]
    given = ("--prompts", prompts, "--exits", tiny_folders.exits, "--out", root / "out")
    result = call("validate", *words, *files, *given)
    assert result.exit_code == 0, result.stderr
    found = json.loads((root / "out" / "validate.json").read_text())
    told = f"drafter {copied} is assumed to be {tiny_folders.drafter}: it is not known whether they differ."
    assert f"The schedule's {told}" in found["warnings"]
    assert [(one["method"], one["same_rounds"], one["events"]) for one in found["schedules"]] == [
        (method, True, []) for method in schedules
    ]


def test_the_search_ranks_schedules_of_these_lanes(files) -> None:
    result = call("search", *files, "--json")
    assert result.exit_code == 0, result.stderr
    used = {one["schedule"]["target_lane"] for one in json.loads(result.stdout)["candidates"]}
    assert used == set(LANES)
