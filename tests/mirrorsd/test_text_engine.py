from decoding.trace import Trace
from mirrorsd.text_engine import Answer


def test_an_answer_is_shown_as_its_text():
    """A notebook prints what a cell ends with; the trace of a text is thousands of spans."""
    answer = Answer(text="Blue.", tokens=(1,) * 1000, trace=Trace(world="measured"))
    assert repr(answer) == "Answer(text='Blue.')"
