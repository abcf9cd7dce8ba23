"""Chat templates: programs by a model's makers, each in a process of its own (`runtime.models.chat.template_process`).

Jinja's sandbox keeps a template from the machine, but not from its time: `{{ 10 ** 10000000 }}` is a sound one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from contextlib import suppress
from threading import Lock

import jinja2
from jinja2.ext import loopcontrols

from runtime.models.chat import template_process


class ChatTemplate:
    """A template that writes out conversations; its process starts with the first of them."""

    def __init__(self, template: str) -> None:
        """Raise `ValueError` where the template is not valid Jinja."""
        try:
            jinja2.Environment(extensions=[loopcontrols]).parse(template)  # noqa: S701  nothing is rendered here
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
                raise ValueError(f"it takes more than {template_process.MOST_CPU_S} seconds")
        answer = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        return str(answer["text"])

    def _end(self, process: subprocess.Popen[str]) -> None:
        _ended(process)
        self._process = None

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", template_process.__file__],
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
