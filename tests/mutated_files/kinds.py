"""Every kind of file that is read, in a sound example."""

from __future__ import annotations

from typing import Final

from tests.mutated_files.kind import Kind
from tests.mutated_files.model_folders import MODEL_FOLDERS
from tests.mutated_files.plan_files import PLAN_FILES
from tests.mutated_files.text_files import TEXT_FILES

KINDS: Final[dict[str, Kind]] = PLAN_FILES | TEXT_FILES | MODEL_FOLDERS
