"""What an engine refuses, and in which words."""

from math import inf, nan

import pytest

from decoding.errors import ConfigError, LaneError, ModelError
from decoding.schedule import Schedule
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from tests.runtime.engine.schedules import AUTOREGRESSIVE, PROMPT, mirror, speculative
from tests.runtime.unknown_operation import Dance
from tests.tiny_models import VOCAB_SIZE


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (speculative(draft_lane="elsewhere"), "no lane 'elsewhere'; lanes: big, small"),
        (mirror(root_source="exit", exit_layer=4, exit_top_k=1), "exit_layer 4 is not before"),
        (speculative(), "no draft to run"),
    ],
)
def test_schedules_that_do_not_fit_are_refused(engine, schedule, message):
    with pytest.raises(ConfigError, match=message):
        engine.generate(schedule, PROMPT, max_new_tokens=4)


def test_features_are_refused_where_the_draft_or_the_exit_has_none(engine, tiny_folders):
    plain_draft = speculative(exit_features=True, drafter=str(tiny_folders.drafter))
    with pytest.raises(ConfigError, match="reads no features"):
        engine.generate(plain_draft, PROMPT, max_new_tokens=4)
    shallow = mirror(root_source="exit", exit_layer=1, exit_top_k=1, exit_features=True)
    shallow = shallow.model_copy(update={"drafter": str(tiny_folders.feature_drafter)})
    with pytest.raises(ConfigError, match=r"exit_layer is 1, but this draft reads features of layers \[1, 2\]"):
        engine.generate(shallow, PROMPT, max_new_tokens=4)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "at least one"),
        ([VOCAB_SIZE], {}, f"from 0 to {VOCAB_SIZE - 1}"),
        (PROMPT, {"max_new_tokens": 0}, "max_new_tokens is 0"),
        (PROMPT, {"max_new_tokens": 122}, "need 129 positions; the target has 128"),
        *((PROMPT, {"temperature": wrong}, "temperature is ") for wrong in (-1.0, 1e-320, 1e308, inf, nan)),
    ],
)
def test_wrong_arguments_are_refused(engine, prompt, options, message):
    with pytest.raises(ConfigError, match=message):
        engine.generate(AUTOREGRESSIVE, prompt, **{"max_new_tokens": 4} | options)


def test_an_error_inside_a_lane_comes_out_with_its_kind_and_text(engine, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config\.json"):
        engine.load_draft("small", str(tmp_path))
    with pytest.raises(LaneError, match="lane 'small': this lane has no operation 'Dance'"):
        engine.lane("small").request(Dance()).result()


def test_a_method_that_is_only_simulated_is_refused_before_anything_is_loaded(tiny_folders):
    blocks = Schedule(
        method="block", target_lane="big", draft_lane="big", num_speculative_tokens=2, drafter="nobody's blocks"
    )
    with (
        Engine(tiny_folders.target, lanes=[LaneSpec(name="big")]) as engine,
        pytest.raises(ConfigError, match="method block is simulated only: no drafter drafts so on real lanes yet"),
    ):
        engine.generate(blocks, PROMPT, max_new_tokens=2)
