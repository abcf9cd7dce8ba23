"""Recipes for training, and for training text: what a YAML file may hold, validated before anything runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, model_validator

from decoding.errors import TrainingError
from decoding.validation import Many, Pair
from decoding.yaml_file import load_yaml
from runtime.verification.rules import LEAST_TEMPERATURE, MOST_TEMPERATURE

MOST: Final = 10**12
"""Upper limit of every count: a larger number is a typing error."""
_Layer = Annotated[int, Field(ge=1, le=MOST)]


def ascending(layers: tuple[int, ...]) -> tuple[int, ...]:
    """Return layers as they are; raise `ValueError` unless each comes after the one before: states come so."""
    if list(layers) != sorted(set(layers)):
        raise ValueError(f"layers are not in ascending order: {list(layers)}")
    return layers


Taps = Annotated[Many[_Layer], AfterValidator(ascending)]
"""Layers whose states are read together."""
_TokenId = Annotated[int, Field(ge=0, le=MOST)]
Windows = Annotated[Many[Annotated[int, Field(ge=1, le=16)]], Field(min_length=1)]


class RecipeFields(BaseModel):
    """Values that are checked: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Optimisation(RecipeFields):
    """Length and learning rate of a training run; `num_tokens` counts answer tokens seen, repeats included.

    For streams of a decoder that stays as it is it counts answer positions with streams. The learning rate warms up
    over `warmup_steps`, stays, and falls linearly to `final_fraction` of itself over the last `decay_fraction` of the
    tokens; so a longer run repeats the beginning of a shorter one exactly.
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
    """Of every recipe: size of the reduced vocabulary, ids always in it, conversations at the end that are held out."""

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
        """Target layers whose states training reads, besides the last."""
        return tuple(layer for name, is_read in self.layer_fields.items() if is_read for layer in self._layers(name))

    def require_layers(self, num_layers: int) -> None:
        """Raise a `TrainingError` if a field names a layer that a target of so many layers does not have."""
        for name in self.layer_fields:
            # the states after the last layer are those of no exit
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
    """A draft language model made of copies of the target's `source_layers`.

    It reads the output of the target's layers `exit_features` after `feature_layer` of its own, but for
    `featureless_share` of the conversations, and is judged at `windows` of drafted tokens.
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
    """Adapters for early exits, one for each layer, of one width."""

    layer_fields = {"exit_layers": True}

    kind: Literal["exit"] = "exit"
    exit_layers: Annotated[Many[_Layer], Field(min_length=1)]
    width: Annotated[int, Field(gt=0, le=MOST)] = 1536


class StreamSizes(_Common):
    """Streams, whichever decoder they belong to: `num_streams` after `start_layer`, with low-rank changes of `rank`.

    Each stream's loss weighs `stream_decay` of the one before, at `rows_per_conversation` answer positions in a step.
    """

    start_layer: _Layer
    num_streams: Annotated[int, Field(ge=1, le=8)] = 3
    rank: Annotated[int, Field(gt=0, le=MOST)] = 32
    stream_decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    rows_per_conversation: Annotated[int, Field(gt=0, le=MOST)] = 64


class StreamRecipe(StreamSizes):
    """Speculative streams in the target's top layers; a tree of `num_nodes` is grown, and judged at `tree_sizes`."""

    layer_fields = {"start_layer": True}

    kind: Literal["streams"] = "streams"
    num_nodes: Annotated[int, Field(ge=1, le=64)] = 64
    tree_sizes: Annotated[Many[Annotated[int, Field(ge=1, le=64)]], Field(min_length=1)] = (63, 16, 8)


class _StreamsOfDraft(StreamSizes):
    """Streams inside a `drafter` (shipped, or a folder), which reads the target's layers `exit_features`, if any."""

    layer_fields = {"exit_features": True}

    drafter: str
    exit_features: Taps = ()
    featureless_share: Annotated[float, Field(ge=0, le=1)] = 0.25


class DraftStreamRecipe(_StreamsOfDraft):
    """Speculative streams inside a draft that stays what it is."""

    kind: Literal["draft_streams"] = "draft_streams"


class StreamingDraftRecipe(_StreamsOfDraft):
    """A draft and its streams, trained together.

    `stream_weight` is that of the streams' mean loss; the draft's own weights learn at `draft_rate_share` of the rate.
    """

    kind: Literal["streaming_draft"] = "streaming_draft"
    stream_weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.3
    draft_rate_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    windows: Windows = (4, 5)


class _EagleRecipe(_Common):
    """Of both EAGLE heads: the layer that theirs is a copy of, and the trees that they are judged with."""

    layer_fields: ClassVar[Mapping[str, bool]] = {"source_layer": False}

    source_layer: _Layer
    tree_depth: Annotated[int, Field(ge=1, le=16)] = 6
    tree_top_k: Annotated[int, Field(ge=1, le=MOST)] = 8
    tree_sizes: Annotated[Many[Annotated[int, Field(ge=1, le=64)]], Field(min_length=1)] = (8, 16, 60)


class Eagle1Recipe(_EagleRecipe):
    """An EAGLE head on the feature that the target's output head reads, moved by up to `noise`, uniformly."""

    kind: Literal["eagle1"] = "eagle1"
    cross_entropy_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1


class Eagle3Recipe(_EagleRecipe):
    """An EAGLE head on the states after `feature_layers` of the target.

    It learns over `num_steps` steps, all but the first on its own features, each weighing `step_weight` of the last.
    """

    layer_fields = {"source_layer": False, "feature_layers": True}

    kind: Literal["eagle3"] = "eagle3"
    feature_layers: Annotated[Taps, Field(min_length=1)]
    num_steps: Annotated[int, Field(ge=1, le=MOST)] = 4
    step_weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.8


class _HeadsRecipe(_Common):
    """Heads on the target's last state that propose a tree of `num_heads` levels; `num_nodes` are grown."""

    num_heads: Annotated[int, Field(ge=1, le=8)] = 4
    num_nodes: Annotated[int, Field(ge=1, le=64)] = 64
    tree_sizes: Annotated[Many[Annotated[int, Field(ge=1, le=64)]], Field(min_length=1)] = (63, 16, 8)


class MedusaRecipe(_HeadsRecipe):
    """Medusa-1 heads with so many residual blocks each."""

    kind: Literal["medusa"] = "medusa"
    num_blocks: Annotated[int, Field(ge=1, le=4)] = 1


class HydraRecipe(_HeadsRecipe):
    """Hydra++ heads: neurons of the prefix layer's MLP, of each head's own block, and of each shared block."""

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
    """A recipe of any kind, as a YAML file holds it."""


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that ship with the package, by name."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "recipes").glob("*.yaml"))}


def load_recipe(path: Path) -> TrainingRecipe:
    """Read a recipe (errors: `decoding.yaml_file.load_yaml`)."""
    return load_yaml(path, RecipeFile).root


PASSAGE = "{passage}"
QUESTION = "{question}"
_Text = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(gt=0, le=MOST)]
_Temperature = Annotated[float, Field(ge=LEAST_TEMPERATURE, le=MOST_TEMPERATURE, allow_inf_nan=False)]


class _AnswerRecipe(RecipeFields):
    """How the target answers: `greedy_share` of the answers at temperature 0; prompts are distinct."""

    num_conversations: _Count
    greedy_share: Annotated[float, Field(ge=0, le=1)] = 0.64
    answer_temperature: _Temperature = 0.8
    answer_top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_answer_tokens: _Count = 224
    batch_size: _Count = 96
    seed: Annotated[int, Field(ge=0, le=MOST)] = 0


class SelfTextRecipe(_AnswerRecipe):
    """User turns that the target continues from openers, up to `max_user_tokens` more."""

    kind: Literal["selfgen"] = "selfgen"
    openers: Annotated[Many[_Text], Field(min_length=1)]
    user_temperature: _Temperature = 0.9
    user_top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    max_user_tokens: _Count = 96


class PassageRecipe(_AnswerRecipe):
    """Long user turns: requests about passages, which are answers of conversations that are there already.

    `{passage}` in a template stands for whole answers, added until there are `passage_tokens` (least and most);
    `{question}` for the user turn that one of them answered.
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
    """A recipe for text of either kind, as a YAML file holds it."""


def load_text_recipe(path: Path) -> TextRecipe:
    """Read a recipe for text (errors: `decoding.yaml_file.load_yaml`)."""
    return load_yaml(path, TextRecipeFile).root
