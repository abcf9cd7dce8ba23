"""What the user says about the models that an engine timed, checked against their names in its files."""

from math import isclose
from typing import Final, NamedTuple

from decoding.errors import ProfileError
from hwprofiles.model_shape import ModelShape, model_shape, shipped_models
from hwprofiles.models.model_names import named_shape
from hwprofiles.weights.formats import weights_in_name

_WEIGHTS: Final = "bf16"
_ALIKE: Final = 0.1
"""Relative difference of the numbers of parameters up to which two names may mean one model."""


class Timed(NamedTuple):
    """What the user says about the timed models: their shapes, and the weight format if their names do not state it."""

    target: ModelShape | None = None
    draft: ModelShape | None = None
    weights: str | None = None

    def weights_of(self, model: str, shape: ModelShape | None) -> str:
        """Return a model's weight format: by its name in the file, else as given, else as it is published."""
        return weights_in_name(model) or self.weights or (_WEIGHTS if shape is None else shape.published_in)

    def pass_bytes(self, shape: ModelShape | None, model: str | None) -> float:
        """Return the bytes of weights that a pass over one row reads; 0 where the shape is not given."""
        if shape is None or model is None:
            return 0.0
        weights = self.weights_of(model, shape)
        return shape.num_layers * shape.layer_weight_bytes(weights) + shape.head_bytes(weights)

    def require(self, target: str, draft: str | None) -> None:
        """Raise `ProfileError` if a given model was not timed, or if the name of a timed one means another model."""
        if self.draft is not None and draft is None:
            raise ProfileError(f"{target} alone was timed: a benchmark of {self.draft.name} is needed too")
        for model, shape in ((target, self.target), (draft, self.draft)):
            named = None if model is None else named_shape(model, shipped_models())
            if named is None or shape is None:
                continue
            known = model_shape(named.shape)
            if not isclose(known.num_parameters, shape.num_parameters, rel_tol=_ALIKE):
                raise ProfileError(f"{model} was timed, which is {known.name}, and not {shape.name}")
