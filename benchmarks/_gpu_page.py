"""What docs/results.md shows of GPUs: a pass over more rows, a demo and a large pair there."""

from __future__ import annotations

from collections.abc import Iterator

from _common import RESULTS, read_result
from _results_page import Json, large_pair, schedule_rows, table, times

_ROWS = (1, 8, 16, 32, 64)


def sections() -> dict[str, str]:
    """Return the section of docs/results.md, by marker."""
    return {
        "gpu": gpu_page(read_result(RESULTS / "gpu.json"), read_result(RESULTS / "demo-h200.json")),
        "large-pair-gpu": large_pair(read_result(RESULTS / "large-pair-h200.json")),
    }


def gpu_page(found: Json, demo: Json) -> str:
    """Return the machine, the table of layers, the checks, and the demo."""
    device, accuracy, scope = found["device"], demo["accuracy"], demo["speedup"]["scope"]
    checks = ", ".join(check["name"] for check in found["checks"] if check["is_same"])
    copy = found["memory"][0]["bytes_per_s"]
    machine = (
        f"{device['name']}, torch {device['torch']}, bfloat16, random weights; a copy moves {copy / 1e12:.2f} TB/s. "
        f"Checked: {checks}."
    )
    first = found["layers"][0]
    reading_s = first["weight_bytes"] / copy
    steps = (
        f"A copy's speed would read the weights of a layer of {first['model']} in {reading_s * 1e6:.0f} µs. "
        f"{_streams(found)} A draft's step (28 layers, 0.6B) takes {_step_ms(found, 1):.1f} ms for one branch and "
        f"{_step_ms(found, 64):.1f} ms for 64."
    )
    in_demo = (
        f"A demo on an {demo['platform']['gpu']} with a pair of `benchmarks/nested_pair.py`, on two lanes of the GPU, "
        f"answers of up to {demo['max_new_tokens']} tokens, "
        f"{demo['num_recorded_prompts']} prompts recorded: speculation is {times(scope['like_these'])} as fast as "
        f"plain decoding. Errors of the times are {accuracy['median_error']:.1%} in the median and "
        f"{accuracy['worst_error']:.1%} at most. {demo['rounds']}"
    )
    layers = table([dict(_cells(found, model, context)) for model, context in _measured(found)])
    paragraphs = [machine, layers, steps, in_demo, table(schedule_rows(demo))]
    return "\n\n".join(paragraphs) + "\n"


def _measured(found: Json) -> list[tuple[str, int]]:
    """Return the models and contexts whose layers were timed."""
    return list(dict.fromkeys((one["model"], one["context"]) for one in found["layers"]))


def _cells(found: Json, model: str, context: int) -> Iterator[tuple[str, str]]:
    own = [one for one in found["layers"] if (one["model"], one["context"]) == (model, context)]
    seconds = {one["rows"]: one["seconds"] for one in own}
    yield "model", model
    yield "context", f"{context:,}"
    yield "µs a layer, 1 row", f"{seconds[1] * 1e6:.0f}"
    for rows in _ROWS[1:]:
        yield f"{rows} rows", f"{seconds[rows] / seconds[1]:.2f}×"


def _streams(found: Json) -> str:
    one, other, both = (entry["seconds"] for entry in found["streams"])
    target, draft = found["streams"][-1]["streams"]
    saved = 1 - both / (one + other)
    return (
        f"Layers of {target} and {draft} on two streams of the GPU at once take {saved:.0%} less time than one after "
        "the other."
    )


def _step_ms(found: Json, width: int) -> float:
    return next(float(1e3 * one["seconds"]) for one in found["draft"] if one["width"] == width)
