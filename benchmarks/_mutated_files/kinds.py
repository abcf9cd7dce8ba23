"""Every kind of file that is read, in a sound example."""

from __future__ import annotations

from typing import Final

from benchmarks._mutated_files.kind import Kind
from benchmarks._mutated_files.model_folders import MODEL_FOLDERS
from benchmarks._mutated_files.plan_files import PLAN_FILES
from benchmarks._mutated_files.text_files import TEXT_FILES

KINDS: Final[dict[str, Kind]] = PLAN_FILES | TEXT_FILES | MODEL_FOLDERS
