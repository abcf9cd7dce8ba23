"""Chat templates: programs by a model's makers, each in a process of its own: this module run as a program.

Jinja's sandbox keeps a template from the machine, but not from its time: `{{ 10 ** 10000000 }}` is a sound one. The
process reads a template, then variables, a line of JSON each, and answers each with a line: a text or an error.
Templates get one date for today's, so that a prompt encodes the same every day.
"""

import json
import resource
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from datetime import date
from threading import Lock
from typing import Any, Final, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """The tag around what a model says, for whoever trains it; it writes its content."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_EXTENSIONS: Final = (loopcontrols, _Generation)


class ChatTemplate:
    """A template that writes out conversations; its process starts with the first of them."""

    def __init__(self, template: str) -> None:
        """Raise `ValueError` where the template is not valid Jinja."""
        try:
            jinja2.Environment(extensions=_EXTENSIONS).parse(template)  # noqa: S701  nothing is rendered here
        except (jinja2.TemplateError, RecursionError) as error:
            raise ValueError(str(error)) from error
        self._template = template
        self._process: subprocess.Popen[str] | None = None
        self._one_at_a_time = Lock()

    def render(self, **variables: object) -> str:
        """Return the text of JSON-able variables; raise `ValueError` if it refuses, fails, or takes too much."""
        question = json.dumps(variables)
        with self._one_at_a_time:
            process = self._process = self._process or self._started()
            try:
                _say(process, question)
                assert process.stdout is not None
                line = process.stdout.readline()
            except BaseException:  # what was asked would be answered the next time
                self._end(process)
                raise
            if not line:
                self._end(process)
                raise ValueError(f"it takes more than {MOST_CPU_S} seconds")
        answer = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        return str(answer["text"])

    def _end(self, process: subprocess.Popen[str]) -> None:
        _ended(process)
        self._process = None

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # an interrupt from the keyboard is for us
        )
        weakref.finalize(self, _ended, process)
        _say(process, json.dumps(self._template))
        return process


def _say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # nothing will be answered
        process.stdin.write(line + "\n")
        process.stdin.flush()


def _ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    with suppress(BrokenPipeError), process:  # closes its pipes and waits
        pass


MOST_CPU_S: Final = 2
"""For one text; a usual template takes a thousandth of it."""
_MOST_BYTES: Final = 1 << 29
"""Memory limit of the whole process."""
_MOST_CHARACTERS: Final = 1 << 24
_LONGEST_ERROR: Final = 300
_TODAY: Final = date(2024, 7, 26)
"""The date in templates of Llama 3.2 for where they are told none."""


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
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=_EXTENSIONS)
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise_in_template, strftime_now=_TODAY.strftime)
    return environment.from_string(template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  as templates call it
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Write JSON as chat templates expect it: without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_in_template(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


if __name__ == "__main__":
    main()
