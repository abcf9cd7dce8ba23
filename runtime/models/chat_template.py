"""Chat templates: Jinja programs of a model's authors, each of which runs in its own process.

Jinja's sandbox does not limit time or memory: `{{ 10 ** 10000000 }}` is a valid template. So this module is also a
program, with limits: it reads a template and then variables, a line of JSON each, and answers each line of variables
with a line of JSON, a text or an error. Templates get a fixed date as today's, so that a prompt encodes the same every
day.
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
    """The tag `{% generation %}`, which marks the model's answers for training; here it just writes its content."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_EXTENSIONS: Final = (loopcontrols, _Generation)


class ChatTemplate:
    """A chat template; its process starts with the first conversation."""

    def __init__(self, template: str) -> None:
        """Raise `ValueError` if the template is not valid Jinja."""
        try:
            jinja2.Environment(extensions=_EXTENSIONS).parse(template)  # noqa: S701  nothing is rendered here
        except (jinja2.TemplateError, RecursionError) as error:
            raise ValueError(str(error)) from error
        self._template = template
        self._process: subprocess.Popen[str] | None = None
        self._one_at_a_time = Lock()

    def render(self, **variables: object) -> str:
        """Return the text for JSON-able variables; raise `ValueError` if the template fails or exceeds its limits."""
        request = json.dumps(variables)
        with self._one_at_a_time:
            process = self._process = self._process or self._started()
            try:
                _say(process, request)
                assert process.stdout is not None
                line = process.stdout.readline()
            except BaseException:  # the next call would read the answer to this one
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
            start_new_session=True,  # so that Ctrl-C interrupts only the main process
        )
        weakref.finalize(self, _ended, process)
        _say(process, json.dumps(self._template))
        return process


def _say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # the process has ended; reading its answer will tell
        process.stdin.write(line + "\n")
        process.stdin.flush()


def _ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    with suppress(BrokenPipeError), process:  # the end of the block closes the pipes and waits for the process
        pass


MOST_CPU_S: Final = 2
"""CPU time limit for one text, about a thousand times what a template usually takes."""
_MOST_BYTES: Final = 1 << 29
"""Memory limit of the process."""
_MOST_CHARACTERS: Final = 1 << 24
_LONGEST_ERROR: Final = 300
_TODAY: Final = date(2024, 7, 26)
"""The default date in the templates of Llama 3.2."""


def main() -> None:
    """Answer the lines of the standard input until it ends."""
    with suppress(ValueError, OSError):  # not every system can limit memory
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    template = json.loads(sys.stdin.readline())
    compiled: jinja2.Template | None = None
    for line in sys.stdin:
        limit_s = int(time.process_time()) + MOST_CPU_S  # the system kills the process when it has used this much
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        try:
            compiled = compiled or _compiled(template)
            text = compiled.render(**json.loads(line))
            is_long = len(text) > _MOST_CHARACTERS
            answer = {"error": f"a text of {len(text):,} characters"} if is_long else {"text": text}
        except Exception as error:  # noqa: BLE001  a template may raise anything
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
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  templates pass it by position
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Write JSON without the HTML escapes of Jinja's filter, as chat templates expect it."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_in_template(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


if __name__ == "__main__":
    main()
