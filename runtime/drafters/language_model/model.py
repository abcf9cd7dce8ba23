"""The draft model as a torch module: a few layers, the target's embeddings, and a reduced output vocabulary."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from runtime.backends.backend import Backend
from runtime.drafters.language_model.draft_passes import DraftConfig, DraftPasses
from runtime.drafters.streams import StreamModel
from runtime.models.config import ModelConfig
from runtime.models.decoder import Decoder, is_unfilled
from runtime.models.row_invariance import Linear
from runtime.models.vocabulary import OutputRows


class DraftModel(nn.Module, DraftPasses):
    """A `Decoder` with few layers, a reduced head, and optional fusion of exit features.

    Its embedding and `lm_head` are rows of the target's and not trained; `kept_ids` maps draft ids to target ids.
    """

    decoder: Decoder
    fuse: Linear | None
    kept_ids: Tensor

    def __init__(self, target_config: ModelConfig, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        shape = replace(target_config, num_layers=len(config.source_layers), tie_embeddings=False)
        self.decoder = Decoder(shape)
        self.decoder.lm_head = Linear(shape.hidden_size, config.vocab_size, bias=False)
        width = len(config.exit_features) * shape.hidden_size
        self.fuse = Linear(width, shape.hidden_size, bias=False) if width else None
        self.streams: StreamModel | None = None
        all_ids = torch.empty(config.vocab_size, dtype=torch.long) if is_unfilled() else torch.arange(config.vocab_size)
        self.register_buffer("kept_ids", all_ids)
        self.output = OutputRows(self.kept_ids, self.decoder.lm_head.weight)

    def run_on(self, backend: Backend) -> None:
        """See `DraftPasses`; moves to the back end's device."""
        if self.kept_ids.device != backend.device:
            self.to(backend.device)
            self.output.move_to(backend.device)
        super().run_on(backend)

    def share(self, target: Decoder, kept_ids: Tensor) -> None:
        """Use the target's embedding and the kept rows of its `lm_head`, frozen."""
        weight = target.embedding.weight
        self.kept_ids = kept_ids
        self.decoder.embedding.weight = nn.Parameter(weight, requires_grad=False)
        self.decoder.lm_head.weight = nn.Parameter(
            target.lm_head.weight[kept_ids].to(weight.dtype), requires_grad=False
        )
        self.output = OutputRows(kept_ids, self.decoder.lm_head.weight.detach(), target.lm_head.weight.detach())

    def add_streams(self) -> StreamModel:
        """Add untrained streams, of the sizes in `config`, to the current layers, and return them."""
        assert self.config.streams is not None, "a draft without sizes of streams"
        self.streams = StreamModel(self.decoder, self.config.streams)
        return self.streams
