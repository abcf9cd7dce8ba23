"""Recipes (YAML) for training drafters, and for generating training text; validated before anything runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, model_validator

from decoding.errors import TrainingError
from decoding.validation import Many, Pair
from decoding.yaml_file import load_yaml
from runtime.verification.rules import LEAST_TEMPERATURE, MOST_TEMPERATURE

MOST: Final = 10**12
"""Upper limit of all counts: a larger number is a typo."""
_Layer = Annotated[int, Field(ge=1, le=MOST)]


def ascending(layers: tuple[int, ...]) -> tuple[int, ...]:
    """Return `layers`; raises `ValueError` unless they strictly ascend, the order in which states are computed."""
    if list(layers) != sorted(set(layers)):
        raise ValueError(f"layers are not in ascending order: {list(layers)}")
    return layers


Taps = Annotated[Many[_Layer], AfterValidator(ascending)]
"""Layers whose hidden states a drafter reads together."""
_TokenId = Annotated[int, Field(ge=0, le=MOST)]
Windows = Annotated[Many[Annotated[int, Field(ge=1, le=16)]], Field(min_length=1)]


class RecipeFields(BaseModel):
    """Base of recipes: strict types, and unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Optimisation(RecipeFields):
    """Length and learning rate of a training run.

    `num_tokens` counts answer tokens seen, repeats included; for streams of a frozen decoder, answer positions with
    streams. The learning rate warms up over `warmup_steps`, stays constant, and falls linearly to `final_fraction` of
    itself over the last `decay_fraction` of the tokens. So a longer run begins exactly like a shorter one.
    """

    num_tokens: Annotated[int, Field(gt=0, le=MOST)]
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    conversations_per_step: Annotated[int, Field(gt=0, le=MOST)] = 4
    warmup_steps: Annotated[int, Field(ge=0, le=MOST)] = 100
    decay_fraction: Annotated[float, Field(ge=0, le=1)] = 0.3
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.03
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    max_gradient_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] = 0


class _Common(RecipeFields):
    """Fields of all recipes.

    Attributes:
        vocab_size: size of the reduced vocabulary.
        always_kept: token ids that are always in it.
        num_held_out: conversations at the end of the data that are held out.
    """

    layer_fields: ClassVar[Mapping[str, bool]] = {}
    """Fields that name layers of the target, and whether training reads the states after them."""

    vocab_size: Annotated[int, Field(gt=0, le=MOST)] = 8192
    always_kept: Many[_TokenId] = ()
    num_held_out: Annotated[int, Field(gt=0, le=MOST)] = 100
    optimisation: Optimisation

    @model_validator(mode="after")
    def _keeps_all(self) -> Self:
        if (num_kept := len(set(self.always_kept))) > self.vocab_size:
            raise ValueError(f"always_kept has {num_kept} ids, but vocab_size is {self.vocab_size}")
        return self

    @property
    def state_layers(self) -> tuple[int, ...]:
        """Target layers whose hidden states training reads, besides the last layer."""
        return tuple(layer for name, is_read in self.layer_fields.items() if is_read for layer in self._layers(name))

    def require_layers(self, num_layers: int) -> None:
        """Raise `TrainingError` if a field names a layer that a target with `num_layers` does not have."""
        for name in self.layer_fields:
            # there is no early exit after the last layer
            last, whose = num_layers, "the target has layers"
            if name in ("exit_features", "exit_layers"):
                last, whose = num_layers - 1, "exits are after layers"
            wrong = [layer for layer in self._layers(name) if layer > last]
            if wrong:
                msg = f"{name} {wrong[0]}: {whose} 1..{last}; change {name} in the recipe"
                raise TrainingError(msg)

    def _layers(self, field: str) -> tuple[int, ...]:
        value = getattr(self, field)
        return value if isinstance(value, tuple) else (value,)


class DraftRecipe(_Common):
    """A draft language model that starts as copies of the target's `source_layers`.

    Attributes:
        exit_features: target layers whose hidden states the draft reads.
        feature_layer: number of the draft's layers before it reads them.
        featureless_share: share of training conversations without features.
        windows: draft lengths at which the draft is judged.
    """

    layer_fields = {"source_layers": False, "exit_features": True}

    kind: Literal["draft"] = "draft"
    source_layers: Annotated[Many[_Layer], Field(min_length=1)]
    exit_features: Taps = ()
    feature_layer: Annotated[int, Field(ge=0, le=MOST)] = 0
    featureless_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    windows: Windows = (4, 5)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.feature_layer >= len(self.source_layers):
            raise ValueError(f"feature_layer {self.feature_layer} is outside 0..{len(self.source_layers) - 1}")
        return self


class ExitRecipe(_Common):
    """Adapters of `width` for early exits, one for each of `exit_layers`."""

    layer_fields = {"exit_layers": True}

    kind: Literal["exit"] = "exit"
    exit_layers: Annotated[Many[_Layer], Field(min_length=1)]
    width: Annotated[int, Field(gt=0, le=MOST)] = 1536


class StreamSizes(_Common):
    """Sizes of stream heads in any decoder.

    Attributes:
        start_layer: streams run through the layers after this one, with low-rank changes of `rank`.
        stream_decay: weight of a stream's loss relative to the stream before.
        rows_per_conversation: answer positions with streams per conversation and step.
    """

    start_layer: _Layer
    num_streams: Annotated[int, Field(ge=1, le=8)] = 3
    rank: Annotated[int, Field(gt=0, le=MOST)] = 32
    stream_decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    rows_per_conversation: Annotated[int, Field(gt=0, le=MOST)] = 64


class StreamRecipe(StreamSizes):
    """Streams in the target's top layers. A tree of `num_nodes` is grown; its first `tree_sizes` nodes are judged."""

    layer_fields = {"start_layer": True}

    kind: Literal["streams"] = "streams"
    num_nodes: Annotated[int, Field(ge=1, le=64)] = 64
    tree_sizes: Annotated[Many[Annotated[int, Field(ge=1, le=64)]], Field(min_length=1)] = (63, 16, 8)


class _StreamsOfDraft(StreamSizes):
    """Streams inside a draft model: `drafter` (a shipped one or a folder), which reads the layers `exit_features`."""

    layer_fields = {"exit_features": True}

    drafter: str
    exit_features: Taps = ()
    featureless_share: Annotated[float, Field(ge=0, le=1)] = 0.25


class DraftStreamRecipe(_StreamsOfDraft):
    """Streams inside a frozen draft model."""

    kind: Literal["draft_streams"] = "draft_streams"


class StreamingDraftRecipe(_StreamsOfDraft):
    """A draft model and its streams, trained together.

    `stream_weight`: weight of the streams' mean loss. `draft_rate_share`: share of the learning rate for the draft.
    """

    kind: Literal["streaming_draft"] = "streaming_draft"
    stream_weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.3
    draft_rate_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    windows: Windows = (4, 5)


class _EagleRecipe(_Common):
    """Fields of both EAGLE heads: the target layer that the head's layer copies, and the trees to judge it with."""

    layer_fields: ClassVar[Mapping[str, bool]] = {"source_layer": False}

    source_layer: _Layer
    tree_depth: Annotated[int, Field(ge=1, le=16)] = 6
    tree_top_k: Annotated[int, Field(ge=1, le=MOST)] = 8
    tree_sizes: Annotated[Many[Annotated[int, Field(ge=1, le=64)]], Field(min_length=1)] = (8, 16, 60)


class Eagle1Recipe(_EagleRecipe):
    """An EAGLE-1 head on the input of the target's `lm_head`, with uniform noise of up to +-`noise` in training."""

    kind: Literal["eagle1"] = "eagle1"
    cross_entropy_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1


class Eagle3Recipe(_EagleRecipe):
    """An EAGLE-3 head on the states after `feature_layers` of the target.

    It is trained over `num_steps` steps, after the first one on its own features; each step's loss weighs `step_weight`
    of the one before.
    """

    layer_fields = {"source_layer": False, "feature_layers": True}

    kind: Literal["eagle3"] = "eagle3"
    feature_layers: Annotated[Taps, Field(min_length=1)]
    num_steps: Annotated[int, Field(ge=1, le=MOST)] = 4
    step_weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.8


class _HeadsRecipe(_Common):
    """Heads on the target's last state that propose a static tree of `num_heads` levels, grown to `num_nodes`."""

    num_heads: Annotated[int, Field(ge=1, le=8)] = 4
    num_nodes: Annotated[int, Field(ge=1, le=64)] = 64
    tree_sizes: Annotated[Many[Annotated[int, Field(ge=1, le=64)]], Field(min_length=1)] = (63, 16, 8)


class MedusaRecipe(_HeadsRecipe):
    """Medusa-1 heads with `num_blocks` residual blocks each."""

    kind: Literal["medusa"] = "medusa"
    num_blocks: Annotated[int, Field(ge=1, le=4)] = 1


class HydraRecipe(_HeadsRecipe):
    """Hydra++ heads; widths are those of the prefix layer's MLP, of each head's block, and of each shared block."""

    kind: Literal["hydra"] = "hydra"
    prefix_width: Annotated[int, Field(gt=0, le=MOST)]
    head_width: Annotated[int, Field(gt=0, le=MOST)]
    shared_widths: Many[Annotated[int, Field(gt=0, le=MOST)]]


TrainingRecipe = (
    DraftRecipe
    | ExitRecipe
    | MedusaRecipe
    | HydraRecipe
    | Eagle1Recipe
    | Eagle3Recipe
    | StreamRecipe
    | DraftStreamRecipe
    | StreamingDraftRecipe
)
"""A recipe of any kind."""


class RecipeFile(RootModel[Annotated[TrainingRecipe, Field(discriminator="kind")]]):
    """A YAML file with a recipe of any kind."""


def shipped_recipes(*, for_text: bool | None = None) -> dict[str, Path]:
    """Return the paths of the shipped recipes, by name: all (None), those for text, or all others."""
    paths = sorted((Path(__file__).parent / "recipes").glob("*.yaml"))
    return {path.stem: path for path in paths if for_text in (None, path.stem.endswith(("-selfgen", "-passages")))}


def load_recipe(path: Path) -> TrainingRecipe:
    """Read a recipe; raises as `decoding.yaml_file.load_yaml`."""
    return load_yaml(path, RecipeFile).root


PASSAGE = "{passage}"
QUESTION = "{question}"
_Text = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(gt=0, le=MOST)]
_Temperature = Annotated[float, Field(ge=LEAST_TEMPERATURE, le=MOST_TEMPERATURE, allow_inf_nan=False)]


class _AnswerRecipe(RecipeFields):
    """How the target answers distinct prompts: `greedy_share` of the answers are at temperature 0."""

    num_conversations: _Count
    greedy_share: Annotated[float, Field(ge=0, le=1)] = 0.64
    answer_temperature: _Temperature = 0.8
    answer_top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_answer_tokens: _Count = 224
    batch_size: _Count = 96
    seed: Annotated[int, Field(ge=0, le=MOST)] = 0


class SelfTextRecipe(_AnswerRecipe):
    """User turns that begin with an opener, which the target continues by up to `max_user_tokens`."""

    kind: Literal["selfgen"] = "selfgen"
    openers: Annotated[Many[_Text], Field(min_length=1)]
    user_temperature: _Temperature = 0.9
    user_top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    max_user_tokens: _Count = 96


class PassageRecipe(_AnswerRecipe):
    """Long user turns: requests about passages, which are answers of existing conversations.

    In a template, `{passage}` stands for whole answers, added until they reach a random number of tokens between both
    `passage_tokens`, and `{question}` for the user turn that one of them answered.
    """

    kind: Literal["passages"] = "passages"
    templates: Annotated[Many[_Text], Field(min_length=1)]
    passage_tokens: Pair[_Count]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        without = [template for template in self.templates if PASSAGE not in template]
        if without:
            raise ValueError(f"template {without[0]!r} has no {PASSAGE}")
        least, most = self.passage_tokens
        if least > most:
            raise ValueError(f"passage_tokens: {least} is more than {most}")
        return self


TextRecipe = SelfTextRecipe | PassageRecipe


class TextRecipeFile(RootModel[Annotated[TextRecipe, Field(discriminator="kind")]]):
    """A YAML file with a recipe for text of either kind."""


def load_text_recipe(path: Path) -> TextRecipe:
    """Read a recipe for text; raises as `decoding.yaml_file.load_yaml`."""
    return load_yaml(path, TextRecipeFile).root
