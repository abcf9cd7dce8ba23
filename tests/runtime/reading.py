"""Back ends of tests, and reading texts by any of them in chunks of rows."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from runtime.arrays import as_array, as_tensor, inference
from runtime.backends.backend import Preparation, segments_between
from runtime.backends.lane_device import NPU_ON_CPU, Device
from runtime.storage.stored_decoder import stored_decoder
from tests.runtime.backends.test_devices import forget
from tests.tiny_models import VOCAB_SIZE, tiny_target

SHAPES = {
    "grouped queries": {},
    "a key for every query": {"num_kv_heads": 4},
    "one key for all": {"num_kv_heads": 1, "num_layers": 2},
    "biases": {"architecture": "Qwen2ForCausalLM", "attention_bias": True, "mlp_bias": True},
    "norms of queries and keys": {"architecture": "Qwen3ForCausalLM", "qk_norm": True, "tie_embeddings": False},
}
"""What is other about tiny targets that every device computes."""
IDS = torch.randint(VOCAB_SIZE, (127,), generator=torch.Generator().manual_seed(1))


def first_layers(decoder, num_layers=6):
    """A decoder cut off: enough where the sizes of its layers matter, and not their number."""
    decoder.config, decoder.layers = replace(decoder.config, num_layers=num_layers), decoder.layers[:num_layers]
    return decoder


def stored_form(decoder):
    """The weights of a decoder of torch as arrays, in the same memory."""
    arrays = {name: as_array(weight) for name, weight in decoder.named_parameters()}
    rotary = as_array(decoder.rotary.cos_PH), as_array(decoder.rotary.sin_PH)
    return replace(stored_decoder(decoder.config, arrays), rotary=rotary)


def compiled(decoder, form, lane="openvino:CPU"):
    """Graphs of a decoder's weights, converted to a form."""
    from runtime.backends.openvino.compiled_decoder import CompiledDecoder  # which a machine with a GPU may lack

    dtype = torch.float32 if form == "float32" else torch.bfloat16
    return CompiledDecoder(stored_form(decoder.to(dtype)), device=Device.of_lane(lane), form=form, num_threads=1)


def new_backend():
    return compiled(tiny_target(max_position=400), "bfloat16")


def prepare(backend, *, num_slots=127, num_prompt=60, rows=(1, 4, 8), **more):
    """Prepare for texts whose layers are not cut."""
    whole = segments_between(backend.config.num_layers)
    plan = {"num_slots": num_slots, "num_prompt": num_prompt, "rows": rows}
    backend.prepare(Preparation(**{"segments": whole, "prompt_segments": whole} | plan | more))
    return backend


def rounded(decoder, form):
    """The decoder in float32 with the numbers that its weights are rounded to: a head is int8 where layers are int4."""
    from runtime.backends.openvino.packing import quantized

    decoder = decoder.to(torch.bfloat16).float()
    for name, weight in decoder.named_parameters():
        if form in ("int8", "int4") and weight.dim() == 2 and "embedding" not in name:
            own_form = "int8" if "lm_head" in name else form
            values, scale = (as_tensor(part).float() for part in quantized(as_array(weight), own_form))
            weight.copy_((values * scale).view(weight.shape))
    return decoder


@inference
def read(backend, chunks, *, ids=IDS, cuts=(), text=None):
    """Logits [T, V] of a text, or of what follows in it, read in these chunks as far as there are ids."""
    if text is None:
        text = backend.new_text()
        text.start(len(ids))
    first, found = text.cursor, []
    for count in chunks:
        start = text.cursor - first
        stop = min(start + count, len(ids))
        if start == stop:
            break
        x, positions = backend.embedding(np.asarray(ids[None, start:stop])), np.arange(text.cursor, first + stop)
        for layer, last in segments_between(*cuts, backend.config.num_layers):
            x = backend.run_layers(x, layer, last, positions=positions, cache=text)
        found.append(torch.as_tensor(backend.logits(x)[0]))
        text.advance(stop - start)
    return torch.cat(found).float()


@contextmanager
def npu_here():
    """The NPU's path on the CPU, compiled in this process: a start of Python takes longer than a tiny graph."""
    from runtime.backends.openvino import compiler

    def compiled_here(model, device, settings):
        made = settings.new_core().compile_model(model, device, settings.graph)
        compiler._run_once(made)
        return made.export_model().getvalue()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(NPU_ON_CPU, "1")
        patch.setattr(compiler, "compiled_apart", compiled_here)
        forget()
        yield
    forget()
