"""Acceptance records: what a drafter proposes and an exit names at every position of the target's texts.

Greedy decoding is lossless, so all schedules of a model pair produce the same text, and a record of it replays any
schedule without a model. Above temperature zero a record holds sampled texts. Position i means: i new tokens are
committed. Arrays are numpy, ids are of the target's vocabulary, and unused entries are -1.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import is_zipfile

import numpy as np
from pydantic import BaseModel, ValidationError

from decoding.errors import RecordError
from decoding.files import most_unpacked, replace_file
from decoding.recorded.prompt_record import Ids, PromptRecord, RecordedChain, RecordedTree
from decoding.recorded.record_checks import (
    FORMAT,
    MAX_BYTES,
    MAX_HEADER_BYTES,
    OPTIONAL_ARRAYS,
    SAMPLED_ARRAYS,
    RecordHeader,
    checked_array,
    complaints,
    missing_for,
)
from decoding.schedule import Method, Schedule
from decoding.validation import described, errors_as

__all__ = ["FORMAT", "AcceptanceRecord", "Ids", "PromptRecord", "RecordedChain", "RecordedTree", "round_starts"]


class FileSize(NamedTuple):
    """Bytes of a record's unpacked file: all arrays, the header included, and the header alone."""

    arrays: int
    header: int

    def with_prompt(self, alone: "FileSize", empty: "FileSize") -> "FileSize":
        """Return the size with one more prompt, given the size of a record of it `alone` and of an `empty` record."""
        separator = len(", ")  # of the header's JSON
        return FileSize(
            self.arrays + alone.arrays - empty.arrays + separator, self.header + alone.header - empty.header + separator
        )

    @property
    def complaint(self) -> str | None:
        """Why the file would be refused as too large; None if it would not."""
        for what, found, most in (("arrays", self.arrays, MAX_BYTES), ("header", self.header, MAX_HEADER_BYTES)):
            if found > most:
                return f"its {what} have {found:,} bytes; at most {most:,} are read"
        return None


@dataclass(frozen=True, kw_only=True)
class AcceptanceRecord:
    """Records of several prompts by one model pair.

    Attributes:
        target, drafter, dtype: names of the models and the data type, for messages and fingerprints; `drafter` is None
            without a draft model.
        max_window: longest window that can be replayed.
        max_new_tokens: new tokens after which texts are cut.
        feature_layers: target layers whose hidden states the draft reads; an exit of `mirror` must not come before the
            last of them.
        trees, chains: what other drafters draft, in the order of every prompt's `tree_ranks` and `chain_drafts`.
        num_streams: number of the draft model's streams.
        assumed: the assumed acceptance in words, if nothing was recorded and texts are drawn
            (`sim.acceptance.assumed`); None for a record of models.
        temperature: the temperature at which texts were sampled; 0 for greedy texts.
        seed: seed of the first text of every prompt; further texts have the following seeds. Plain sampling with this
            seed, and the rule `match`, write the same text on the same back end.
        backend, host: the back end (`Device.backend`) and computer (`hwprofiles.host.computing_host`, None if unknown)
            of the recording; others may choose another token where two logits nearly tie.
        exits: name of the recorded trained exits; None without exits, and in older records.
    """

    target: str
    drafter: str | None
    dtype: str
    max_window: int
    max_new_tokens: int
    exit_layers: tuple[int, ...]
    prompts: tuple[PromptRecord, ...]
    feature_layers: tuple[int, ...] = ()
    trees: tuple[RecordedTree, ...] = ()
    chains: tuple[RecordedChain, ...] = ()
    num_streams: int = 0
    assumed: str | None = None
    temperature: float = 0.0
    seed: int = 0
    backend: str = "torch"
    host: Mapping[str, str] | None = field(default=None, hash=False)
    exits: str | None = None

    def __post_init__(self) -> None:
        """Raise `RecordError` if the arrays of a prompt do not fit its text or the other fields of the record."""
        for prompt in self.prompts:
            for complaint in complaints(prompt, self):
                raise RecordError(f"record of {prompt.name!r}: {complaint}")

    def __repr__(self) -> str:
        """Return one line, as the arrays of all prompts would fill pages."""
        if self.assumed is not None:
            return f"<AcceptanceRecord of nobody, assumed {self.assumed}: {len(self.prompts)} drawn texts>"
        models = f"{self.target} with {self.drafter}, {self.numeric_form}"
        return f"<AcceptanceRecord of {models}: {self.num_prompts} prompts>"

    @property
    def numeric_form(self) -> str:
        """Back end and data type, such as `openvino:CPU int8`; a record is valid for this form only."""
        return f"{self.backend} {self.dtype}"

    def trees_of(self, method: Method) -> list[RecordedTree]:
        """Return the recorded trees of a method."""
        return [tree for tree in self.trees if tree.method == method]

    def chains_of(self, method: Method) -> list[RecordedChain]:
        """Return the recorded chains of a method."""
        return [chain for chain in self.chains if chain.method == method]

    def tree(self, schedule: Schedule) -> int:
        """Return the index of a schedule's trees in `trees`; errors as in `check`."""
        return self._index(schedule, self.trees)

    def chain(self, schedule: Schedule) -> int:
        """Return the index of a schedule's chains in `chains`; errors as in `check`."""
        return self._index(schedule, self.chains)

    def _index(self, schedule: Schedule, recorded: Sequence[RecordedTree | RecordedChain]) -> int:
        for index, one in enumerate(recorded):
            if one.answers(schedule):
                return index
        raise self._refusal(schedule)

    def _refusal(self, schedule: Schedule) -> RecordError:
        settings = schedule.model_dump(
            mode="json", exclude_defaults=True, exclude={"target_lane", "draft_lane", "drafter"}
        )
        text = ", ".join(f"{name} {value}" for name, value in settings.items())
        return RecordError(f"{text}: {self.missing(schedule)}")

    def check(self, schedule: Schedule) -> None:
        """Raise `RecordError` if the record lacks something that a schedule needs; see `missing`."""
        if self.missing(schedule):
            raise self._refusal(schedule)

    def missing(self, schedule: Schedule) -> str | None:
        """Return in words what a schedule needs but the record lacks, and what it has instead; None if it has all."""
        return next(missing_for(schedule, self), None)

    def samples_drafts(self, schedule: Schedule) -> bool:
        """Return whether a schedule's draft samples its tokens, as it does under the ratio rule only."""
        return self.temperature > 0 and schedule.verification == "ratio"

    @property
    def contexts(self) -> range:
        """The possible numbers of KV positions in the target's cache when it verifies.

        Raises `RecordError` for a record without prompts.
        """
        if not self.prompts:
            raise RecordError(f"the record of {self.target} with {self.drafter} has no prompt")
        lengths = [(prompt.prompt_length, len(prompt.text)) for prompt in self.prompts]
        return range(min(before for before, _ in lengths) - 1, max(before + text for before, text in lengths) - 1)

    @cached_property
    def prompt_numbers(self) -> tuple[int, ...]:
        """The number of each text's prompt, counted from 0; several sampled texts may share a prompt."""
        numbers: dict[str | int, int] = {}
        # older records have no hash: every text then counts as a prompt
        keys = (text.prompt_hash or place for place, text in enumerate(self.prompts))
        return tuple(numbers.setdefault(key, len(numbers)) for key in keys)

    @property
    def num_prompts(self) -> int:
        """Number of different prompts."""
        return len(set(self.prompt_numbers))

    @property
    def distinct(self) -> "AcceptanceRecord":
        """The record with only the first text of each prompt: its greedy texts are equal, whatever their names."""
        firsts = [self.prompt_numbers.index(number) for number in range(self.num_prompts)]
        return replace(self, prompts=tuple(self.prompts[place] for place in firsts))

    @cached_property
    def has_features(self) -> bool:
        """Whether rollouts with exit features were recorded."""
        return all(len(prompt.feature_rollouts) == len(prompt.text) for prompt in self.prompts)

    def num_candidates(self, exit_layer: int | None) -> int:
        """Return the smallest number of ids per position of an exit, or of the draft for None, over all prompts."""
        return min((prompt.candidates(exit_layer).shape[1] for prompt in self.prompts), default=0)

    @property
    def file_size(self) -> FileSize:
        """The size of the record's file, unpacked."""
        arrays = self._named_arrays()
        return FileSize(sum(_NPY_HEADER + array.nbytes for array in arrays.values()), arrays["header"].nbytes)

    def save(self, path: str | Path) -> None:
        """Write a `.npz` file (no pickled objects) atomically.

        Raises `RecordError` if it cannot be written or would be too large for `load`.
        """
        size, content = self.file_size, io.BytesIO()
        if size.complaint is not None:
            raise RecordError(f"{path}: {size.complaint}")
        np.savez_compressed(content, **self._named_arrays())
        if size.arrays > most_unpacked(content.getbuffer().nbytes, MAX_BYTES):  # one token repeated packs too well
            content = io.BytesIO()
            np.savez(content, **self._named_arrays())
        with errors_as(RecordError, f"{path}: cannot be written"):
            replace_file(Path(path), content.getvalue())

    def _named_arrays(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {"header": np.frombuffer(self._header(), dtype=np.uint8)}
        for index, prompt in enumerate(self.prompts):
            arrays |= {f"{index}.{name}": getattr(prompt, name) for name in self._arrays}
            arrays |= {f"{index}.exit.{layer}": ids for layer, ids in prompt.exits.items()}
            arrays |= {f"{index}.tree.{place}": ranks for place, ranks in enumerate(prompt.tree_ranks)}
            arrays |= {f"{index}.chain.{place}": drafts for place, drafts in enumerate(prompt.chain_drafts)}
        return arrays

    @classmethod
    def load(cls, path: str | Path) -> "AcceptanceRecord":
        """Return the record in a file of `save`; raise `RecordError` if it is missing, damaged or not a record."""
        try:
            if not is_zipfile(path) and Path(path).is_file():
                raise RecordError("not a readable acceptance record (it is no .npz file, or only a part of one)")
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                if len({*arrays.files}) < len(arrays.files):
                    raise RecordError("an array is there more than once")
                most = most_unpacked(Path(path).stat().st_size, MAX_BYTES)
                if (num_bytes := sum(entry.file_size for entry in arrays.zip.infolist())) > most:
                    raise RecordError(f"its arrays have {num_bytes:,} bytes; at most {most:,} are read")
                return cls._from_arrays({name: arrays[name] for name in arrays.files})
        except RecordError as error:
            raise RecordError(f"{path}: {error}") from error
        except ValidationError as error:
            raise RecordError(f"{path}: not an acceptance record of format {FORMAT}: {described(error)}") from error
        except Exception as error:
            raise RecordError(f"{path}: not a readable acceptance record ({error})") from error

    @property
    def _arrays(self) -> tuple[str, ...]:
        return _ARRAYS + SAMPLED_ARRAYS if self.temperature else _ARRAYS

    def _header(self) -> bytes:
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        prompts = [
            {name: value for name in _SCALARS if (value := getattr(prompt, name)) is not None}
            for prompt in self.prompts
        ]
        return json.dumps({"format": FORMAT} | own | {"prompts": prompts}, default=BaseModel.model_dump).encode()

    @classmethod
    def _from_arrays(cls, arrays: dict[str, Any]) -> "AcceptanceRecord":
        if (found := arrays.pop("header")).nbytes > MAX_HEADER_BYTES:
            raise RecordError(f"its header has {found.nbytes:,} bytes; at most {MAX_HEADER_BYTES:,} are read")
        header = RecordHeader.model_validate_json(found.tobytes())
        arrays = {name: checked_array(array, name) for name, array in arrays.items()}
        names = _ARRAYS + SAMPLED_ARRAYS if header.temperature else _ARRAYS
        prompts = tuple(
            PromptRecord(
                **row.model_dump(),
                **{name: arrays[f"{index}.{name}"] for name in names},
                exits={layer: arrays[f"{index}.exit.{layer}"] for layer in header.exit_layers},
                tree_ranks=tuple(arrays[f"{index}.tree.{place}"] for place in range(len(header.trees))),
                chain_drafts=tuple(arrays[f"{index}.chain.{place}"] for place in range(len(header.chains))),
            )
            for index, row in enumerate(header.prompts)
        )
        own = header.model_dump(exclude={"format", "prompts", "trees", "chains"})
        return cls(**own, trees=header.trees, chains=header.chains, prompts=prompts)


_NPY_HEADER = 128
"""Bytes of the header of an array in a file."""
_SCALARS = ("name", "category", "prompt_length", "prompt_hash")
_ARRAYS = ("text", "rollouts", "alternatives", "margins", *OPTIONAL_ARRAYS)


def round_starts(num_accepted: Sequence[int], length: int) -> list[int]:
    """Return the positions below `length` at which rounds start; a round at i accepts num_accepted[i] tokens."""
    starts, position = [], 0
    while position < length:
        starts.append(position)
        position += num_accepted[position] + 1
    return starts
