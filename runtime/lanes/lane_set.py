"""The lanes of one target: starts processes when they are needed, and loads each model once into a lane."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from decoding.errors import ConfigError, LaneTimeoutError
from runtime.backends.devices import require_form
from runtime.backends.lane_device import Dtype
from runtime.drafters.registry import find_drafter
from runtime.lanes.lane import Lane, LaneSpec
from runtime.lanes.lane_calls import DRAFT_LOAD_DEADLINE_S
from runtime.wire.operations import DrafterTraits
from runtime.worker.server import LaneServer

P = ParamSpec("P")
R = TypeVar("R")


class LaneSet:
    """Lanes by name, and what each has loaded; a lost lane is started again. `drafter` None means the engine's."""

    def __init__(
        self, specs: Sequence[LaneSpec], *, target: Path, drafter: Path | None, exits: Path | None, dtype: Dtype
    ) -> None:
        self._lanes = {spec.name: Lane(spec) for spec in specs}
        if len(self._lanes) < len(specs):
            raise ConfigError(f"two lanes share a name: {', '.join(spec.name for spec in specs)}")
        self._target, self._drafter, self._exits, self._dtype = target, drafter, exits, dtype
        self._loaded: dict[str, dict[str, tuple[Any, Any]]] = {}

    def __getitem__(self, name: str) -> Lane:
        """Return a lane, running or not; raise `ConfigError` if there is no lane of this name."""
        if name not in self._lanes:
            raise ConfigError(f"there is no lane {name!r}; lanes: {', '.join(self._lanes)}")
        return self._lanes[name]

    @property
    def running(self) -> list[str]:
        """Names of the running lanes."""
        return [name for name, lane in self._lanes.items() if lane.is_alive]

    def kept(self, name: str) -> tuple[Path, ...]:
        """Return the folders of the drafters that a lane keeps loaded."""
        if not self[name].is_alive or "load_draft" not in self._loaded.get(name, {}):
            return ()
        traits: DrafterTraits = self._loaded[name]["load_draft"][1]
        return traits.kept

    def load_target(self, name: str) -> Lane:
        """Return a lane with the target and its exits loaded."""
        return self._load(name, None, LaneServer.load_target, self._target, self._exits, self._form(name))[0]

    def load_draft(self, name: str, drafter: str | None = None) -> tuple[Lane, DrafterTraits]:
        """Return a lane with a drafter loaded, and the drafter's traits."""
        folder, form = self.drafter_folder(drafter), self._form(name)
        return self._load(name, DRAFT_LOAD_DEADLINE_S, LaneServer.load_draft, self._target, folder, form)

    def load_streams(self, name: str, drafter: str | None = None) -> Lane:
        """Return a lane with the target and its streams loaded."""
        folder = self.drafter_folder(drafter)
        self.load_target(name)
        return self._load(name, None, LaneServer.load_streams, folder)[0]

    def drafter_folder(self, drafter: str | None) -> Path:
        """Return the folder of a drafter; raise `ConfigError` if none was given, `ModelError` if it does not exist."""
        folder = self._drafter if drafter is None else find_drafter(drafter)
        if folder is None:
            raise ConfigError("there is no draft to run: neither the schedule nor the engine has a drafter")
        return folder

    def close(self) -> None:
        """End all processes."""
        for lane in self._lanes.values():
            lane.close()

    def _form(self, name: str) -> Dtype:
        spec = self[name].spec
        form = spec.dtype or self._dtype
        require_form(name, spec.device.name, form)
        return form

    def _load(
        self,
        name: str,
        deadline_s: float | None,
        method: Callable[Concatenate[LaneServer, P], R],
        *args: P.args,
        **options: P.kwargs,
    ) -> tuple[Lane, R]:
        """Return the lane and its reply to a loading operation, sent unless its last one of this kind was the same.

        A lane that does not load in time is killed.
        """
        lane, kind = self[name], method.__name__
        if not lane.is_alive:
            lane.close()  # cleans up if its process has ended by itself
            self._loaded[name] = {}
            lane.start()
        lane.forget_answers()
        loaded = self._loaded[name]
        if kind not in loaded or loaded[kind][0] != args:
            loaded.pop(kind, None)  # even if this is interrupted, the lane replaces what it had loaded
            try:
                loaded[kind] = args, lane.request(method, *args, **options).result(deadline_s).value
            except LaneTimeoutError:
                lane.kill("it did not load in time")
                raise
        return lane, loaded[kind][1]
