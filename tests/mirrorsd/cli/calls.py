"""Calls the command in this process."""

import json
from functools import cache

from typer import testing

from mirrorsd.cli.app import app

testing._get_command = cache(testing._get_command)
"""The command is made once: that takes as long as many an answer."""


def call(*words, exit_code=None):
    """What came of the command, with its outputs also on one line each: `shown` and `said`."""
    result = testing.CliRunner().invoke(app, [str(word) for word in words])
    assert exit_code in (None, result.exit_code), result.output
    result.shown, result.said = " ".join(result.stdout.split()), " ".join(result.stderr.split())
    return result


def json_of(*words):
    """The JSON that the command writes to stdout."""
    return json.loads(call(*words, "--json", exit_code=0).stdout)


def error_of(*words):
    """The one message, on one line, with which the command refuses something."""
    result = call(*words, exit_code=2)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.said
