"""Short decodings of arbitrary tokens: what parts cost in a real run.

Parts measured in a loop meet warm caches and a lane that does nothing else. Decoding alternates models and waits for
messages. Some of these runs set the level of the tables, others check what comes out. None of them is a run that
anybody will ask a prediction for.
"""

from __future__ import annotations

from calibrate.profiling.anchors import Anchors
from calibrate.profiling.run_anchors import decode_with_anchors
from calibrate.profiling.samples import Run
from decoding.schedule import Schedule
from decoding.trace import Trace
from runtime.engine import Engine
from runtime.lanes.sequence_lanes import Listener

_STRIDE = 7919
"""Prime, so that the ids of the tokens visit the whole vocabulary."""


def decode(
    engine: Engine,
    anchors: Anchors,
    schedule: Schedule,
    contexts: tuple[int, int],
    num_tokens: int,
    *,
    is_check: bool = False,
) -> Run:
    """Decode arbitrary text whose contexts lie within the given ones, with anchors before, in between and after.

    Raises:
        MirrorsdError: a lane or model is not to be had.
    """
    first, last = contexts
    num_tokens = min(num_tokens, last - first)
    length = min(first + 1 + (last - first) // 3, last + 1 - num_tokens)
    vocab_size = engine.config.vocab_size
    prompt = [(place + 1) * _STRIDE % vocab_size for place in range(length)]

    def generate(listener: Listener) -> Trace:
        made = engine.generate(schedule, prompt, max_new_tokens=num_tokens, eos_token_ids=(), listener=listener)
        return made.trace

    at_s = anchors.now_s
    trace, taken = decode_with_anchors(anchors, schedule, generate)
    return Run(schedule, length, trace, taken, is_check=is_check, at_s=at_s)
