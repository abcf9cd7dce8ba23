import json
import shutil
from dataclasses import replace

import pytest

from hwprofiles.host import lanes_of
from hwprofiles.profile import Contention, load_profile
from runtime.backends.devices import DeviceStatus
from runtime.backends.lane_device import Device
from tests.journeys import quick
from tests.mirrorsd.cli.calls import call, error_of
from tests.mirrorsd.cli.interrupt import interrupted
from tests.planner.synthetic import acceptance_record, machine


@pytest.fixture
def words(tiny_folders, prompt_file):
    models = ("--target", tiny_folders.target, "--drafter", tiny_folders.drafter, "--exits", tiny_folders.exits)
    sizes = ("--prompts", prompt_file("w1 w2 w3", "w4 w5 w6 w7 w8"), "--max-new-tokens", 20, "--max-window", 2)
    return ("calibrate", "--quick", "--dtype", "float32", *models, *sizes)


def test_a_profile_of_every_lane_is_written(words, tmp_path, monkeypatch, forked_lanes):
    quick.few_sizes(monkeypatch.setattr)
    out = tmp_path / "deep" / "profile.yaml"
    result = call(*words, "--minutes", 0.1, "--max-branches", 64, "--out", out, "--json")
    assert result.exit_code == 0, result.stderr
    profile = load_profile(out)
    assert json.loads(result.stdout)["profile"] == profile.model_dump(mode="json", exclude_defaults=True)
    assert [lane.name for lane in profile.lanes] == [lane.name for lane in lanes_of("openvino:CPU")]
    assert (profile.num_layers, profile.dtype) == (4, "float32")
    for lane in profile.lanes:
        assert lane.layer.rows[-1] >= 3
        assert lane.draft_step.rows[-1] == 64
        assert set(lane.exit) == {2, 3}
        assert lane.layer.contexts[0] <= 2
        assert lane.layer.contexts[-1] >= 5 + 20
    assert profile.calibration_s > 0


@pytest.fixture
def asked(monkeypatch):
    """What `calibrate` is asked for, in place of measuring; it gives a profile of the first lane."""
    seen = []

    def measure(_pair, _path, **options):
        seen.append(options)
        name = options["lanes"][0].name
        lane = machine().lanes[0].model_copy(update={"device": Device.of_lane(name).name, "name": name})
        alone = {"lanes": (lane,), "links": (), "contention": (), "notes": ("Too few repeats [of all].",)}
        return machine().model_copy(update=alone | {"pace_error": 0.105})

    monkeypatch.setattr("mirrorsd.measure_pair.calibrate", measure)
    return seen


def test_devices_that_are_left_alone_are_named_unless_one_was_chosen(words, asked, monkeypatch, tmp_path):
    there = [
        DeviceStatus(name=name, description=f"it is {name}", forms=forms, missing=missing)
        for name, forms, missing in (
            ("openvino:CPU", ("float32",), None),
            ("openvino:GPU", (), "no driver"),
            ("cuda:0", ("float32", "bfloat16"), None),
            ("cuda:1", ("bfloat16",), None),
        )
    ]
    monkeypatch.setattr("mirrorsd.lane_choice.devices", lambda: there)
    said = [call(*words, *chosen, "--out", tmp_path / "p.yaml").stderr for chosen in ((), ("--device", "cpu"))]
    assert "Not used: cuda:0 (it is cuda:0). --device cuda:0 uses it" in " ".join(said[0].split())
    assert said[0].count("Not used") == 1
    assert "Not used" not in said[1]


@pytest.mark.parametrize(
    ("given", "time_s", "lanes"),
    [
        ((), None, [lane.name for lane in lanes_of("openvino:CPU")]),
        (("--minutes", 1.5, "--device", "cpu"), 90.0, [lane.name for lane in lanes_of("cpu")]),
        (("--lanes", "openvino:CPU@0,cpu0"), None, ["openvino:CPU@0", "cpu0"]),
    ],
)
def test_time_and_lanes_are_passed_on_and_what_was_left_out_is_shown(words, tmp_path, asked, given, time_s, lanes):
    result = call(*words, "--out", tmp_path / "profile.yaml", *given)
    assert result.exit_code == 0, result.stderr
    assert [(one["time_s"], [spec.name for spec in one["lanes"]]) for one in asked] == [(time_s, lanes)]
    assert result.stdout.endswith("\nToo few repeats [of all].\n")
    heading, part = result.stdout.splitlines()[3:5]
    assert (heading.split(), part.split()[:-1]) == (["part", lanes[0]], ["one", "target", "layer"])
    assert "All predicted times may have a common error of up to 10 %, which does not affect " in result.stdout
    assert "Next: mirrorsd record --target" in result.stderr
    assert ("--device cpu" in result.said) == ("cpu" in given)
    assert result.stderr.endswith(f"--out {tmp_path / 'record.npz'}\n")


def test_a_slowdown_is_told_with_the_side_of_each_lane(words, tmp_path, monkeypatch):
    def both(lanes, slowdown):
        return Contention(lanes=lanes, slowdown=slowdown, source="a test")

    pairs = both(("target", "draft"), (1.25, 1.5)), both(("draft", "target"), (1.75, 2.0))
    found = machine().model_copy(update={"contention": pairs})
    monkeypatch.setattr("mirrorsd.measure_pair.calibrate", lambda *_, **__: found)
    shown = call(*words, "--out", tmp_path / "profile.yaml").stdout
    assert "Slowdown when both work at once: target on target 1.25x, draft on draft 1.50x" in shown
    assert "Slowdown when both work at once: target on draft 1.75x, draft on target 2.00x" in shown


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("profile.yaml", "record.npz", "profile.npz"),
        ("mine-profile.yaml", "mine.npz", "record.npz"),
        ("mine.yaml", "mine.npz", "record.npz"),
    ],
)
def test_a_record_of_the_same_models_leads_to_the_search_and_no_other_is_written_over(
    words, tmp_path, asked, name, first, second
):
    out, record = tmp_path / name, acceptance_record(num_prompts=3, num_tokens=40)
    words = (*words, "--device", "cpu", "--out", out)
    assert call(*words).stderr.endswith(f"--out {tmp_path / first}\n")
    replace(record, target="another").save(tmp_path / first)
    assert call(*words).stderr.endswith(f"--out {tmp_path / second}\n")
    record.save(tmp_path / second)
    found = f"mirrorsd search --profile {out} --record {tmp_path / second} --out {tmp_path / 'best.yaml'}\n"
    assert call(*words).stderr.endswith(f"Next: {found}")


def test_after_ctrl_c_the_same_command_goes_on(words, tmp_path):
    out, kept = tmp_path / "out" / "profile.yaml", tmp_path / "out" / "profile.unfinished.json.gz"
    words = (*words, "--minutes", 0.1, "--lanes", lanes_of("openvino:CPU")[0].name, "--out", out)
    saved_soon = "from calibrate.profiling import unfinished; unfinished._EVERY_S = 0.0"
    status, stdout, stderr = interrupted(words, when=kept.exists, first=saved_soon)
    assert (status, stdout) == (130, "")
    assert f"Interrupted. What was measured is in {kept}; the same command goes on from there." in stderr
    assert "Traceback" not in stderr
    assert list(out.parent.iterdir()) == [kept]
    done = call(*words)
    assert f"Going on from {kept}" in done.stderr
    assert "Calibration was interrupted: " in done.stdout
    assert out.exists()
    assert not kept.exists()


def test_what_is_no_draft_is_refused_before_anything_is_measured(tiny_folders, tmp_path):
    words = ("--target", tiny_folders.target, "--drafter", tiny_folders.exits, "--out", tmp_path / "profile.yaml")
    assert "is not a draft model" in error_of("calibrate", *words)


@pytest.mark.parametrize(("num_words", "most_of_draft"), [(500, 512), (200, 128)])
def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_measured(
    words, tiny_folders, prompt_file, tmp_path, num_words, most_of_draft
):
    shutil.copytree(tiny_folders.target, draft := tmp_path / "draft")
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | {"max_position_embeddings": most_of_draft}))
    long = ("--prompts", prompt_file("w1", " ".join(["w3"] * num_words)), "--out", tmp_path / "profile.yaml")
    told = error_of(*words, "--drafter", draft, *long)
    assert "positions; " in told
    assert f"has {most_of_draft}" in told
    assert "timing" not in told


def test_a_shape_is_calibrated_by_its_name_and_its_acceptance_is_assumed_next(
    prompt_file, tmp_path, empty_cache, asked
):
    models = ("--target", "shape:smollm2-360m", "--drafter", "shape:smollm2-135m", "--heads", "none")
    sizes = ("--prompts", prompt_file("x" * 30, "x" * 90), "--max-new-tokens", 20)
    result = call("calibrate", *models, *sizes, "--out", tmp_path / "profile.yaml")
    assert result.exit_code == 0, result.stderr
    assert asked[0]["contexts"] == (9, 50)
    assert "Next: mirrorsd search --profile" in result.stderr
    assert "--acceptance 0.6" in result.stderr
