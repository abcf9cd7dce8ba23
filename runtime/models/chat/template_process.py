"""The process that runs a chat template, in Jinja's sandbox and within limits: `python template_process.py`.

It reads a template, then variables, a line of JSON each, and answers each of the latter with a line: a text or an
error. Templates do not get today's date, so that a prompt encodes the same every day. Nothing else of this package is
imported.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from contextlib import suppress
from typing import Any, Final, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_CPU_S: Final = 2
"""For one text; a usual template takes a thousandth of it."""
_MOST_BYTES: Final = 1 << 29
"""Memory limit of the whole process."""
_MOST_CHARACTERS: Final = 1 << 24
_LONGEST_ERROR: Final = 300


def main() -> None:
    """Answer lines until there are no more."""
    with suppress(ValueError, OSError):  # not every system limits memory
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    template = json.loads(sys.stdin.readline())
    compiled: jinja2.Template | None = None
    for line in sys.stdin:
        limit_s = int(time.process_time()) + MOST_CPU_S  # the system ends the process after that
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        try:
            compiled = compiled or _compiled(template)
            text = compiled.render(**json.loads(line))
            is_long = len(text) > _MOST_CHARACTERS
            answer = {"error": f"a text of {len(text):,} characters"} if is_long else {"text": text}
        except Exception as error:  # noqa: BLE001  a template is a program, and may fail as any program
            answer = {"error": (str(error) or type(error).__name__)[:_LONGEST_ERROR]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_in_template
    return environment.from_string(template)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Write JSON as chat templates expect it: without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_in_template(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


if __name__ == "__main__":
    main()
