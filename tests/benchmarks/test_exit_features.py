import pytest

from tests.benchmarks.scripts import load_script


@pytest.fixture(scope="module")
def script():
    return load_script("exit_features")


def test_every_schedule_with_features_has_a_twin_without_them(script) -> None:
    schedules = list(script.schedules())
    assert len(set(schedules)) == len(schedules)
    with_features = [schedule for schedule in schedules if schedule.exit_features]
    assert with_features
    for schedule in with_features:
        assert schedule.model_copy(update={"exit_features": False}) in schedules


def test_a_row_of_the_table_goes_from_without_to_with(script) -> None:
    def entry(features, length, hits, tpot_s):
        figures = {"mean_acceptance_length": length, "reuse_rate": hits, "tpot_s": tpot_s}
        schedule = {"num_speculative_tokens": 2, "method": "mirror", "exit_layer": 20, "exit_features": features}
        return {"schedule": schedule, "measured": figures, "predicted": figures | {"tpot_s": 0.9 * tpot_s}}

    result = {"num_prompts": 7, "max_new_tokens": 48, "schedules": [entry(False, 1.5, 0.5, 0.04)]}
    alone = script.table(result).splitlines()[-1]
    assert alone == "| 2 | mirror, exit after layer 20 | 1.50 | 50% | 40.0 | 36.0 |"
    result["schedules"].append(entry(True, 1.75, 0.25, 0.03))
    both = script.table(result).splitlines()[-1]
    assert both == "| 2 | mirror, exit after layer 20 | 1.50 → 1.75 | 50% → 25% | 40.0 → 30.0 | 36.0 → 27.0 |"
