from decoding.schedule import Schedule
from decoding.trace import Trace
from mirrorsd.text_engine import Answer, Decoding, generate


def test_an_answer_is_shown_as_its_text():
    """A notebook prints what a cell ends with; the trace of a text is thousands of spans."""
    answer = Answer(text="Blue.", tokens=(1,) * 1000, trace=Trace(world="measured"))
    assert repr(answer) == "Answer(text='Blue.')"


def test_one_call_writes_the_same_text_by_whatever_drafts(tiny_folders, lane_names):
    """Prompt lookup and a model, by name or as found: `generate` finds what a schedule drafts with."""
    lane = lane_names[0]
    lookup = Schedule(method="prompt_lookup", target_lane=lane, draft_lane=lane, num_speculative_tokens=3)
    schedules = [
        Schedule(method="autoregressive", target_lane=lane),
        lookup,
        lookup.model_copy(update={"drafter": "prompt-lookup"}),
        lookup.model_copy(update={"method": "speculative", "drafter": str(tiny_folders.drafter)}),
    ]
    how = {"target": tiny_folders.target, "dtype": "float32", "decoding": Decoding(max_new_tokens=12)}
    texts = {generate("w5 w17 w3 w44 w8", schedule, **how).tokens for schedule in schedules}
    assert len(texts) == 1
