"""The command and its verbs; errors and Ctrl-C in any verb become a message and an exit status."""

import errno
from importlib import import_module
from os.path import realpath
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from decoding.errors import ConfigError, MirrorsdError, cut, wrong
from mirrorsd.cli.console import WRONG_INPUT, escaped, say, told_at_interruptions, with_default_destination
from mirrorsd.cli.options import OUTPUTS, STDOUT

VERBS: Final = (
    "models profiles devices calibrate record search plan curve import_ reproduce published.retrodict simulate run "
    "validate demo report train"
)
"""Modules of `mirrorsd/cli/verbs`, in the order of the help; each has a function, or a Typer group, of its name."""
RUN: Final = frozenset({"gguf", "huggingface_hub", "ml_dtypes", "openvino", "safetensors", "tokenizers", "torch"})
"""Top-level modules of the extra `run`, which load models and decode; pyproject.toml lists their packages."""


def missing_package(error: ModuleNotFoundError) -> str:
    """Return the message for a missing package of the extra `run`; raises the error for any other module."""
    name = (error.name or "").partition(".")[0]
    if name not in RUN:
        raise error
    return f"{name} is not installed, and this command needs it: pip install 'mirrorsd[run]'"


def _without_values(params: list[Any]) -> list[Any]:
    """Return the parameters, with flags shown without the `<bool>` that Typer's help would give them."""
    for one in params:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return params


class Verb(TyperCommand):
    """A verb; it refuses to overwrite a file that it reads, or to write two outputs into one file."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, flags without values."""
        return _without_values(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Allow `--json` without a value, and name a refused value in the error, which Typer does not."""
        takes_files = any(one.nargs < 0 for one in self.params)
        try:
            return super().parse_args(ctx, with_default_destination(args, takes_files=takes_files))
        except typer.BadParameter as error:
            from pydantic import ValidationError

            found = error.__cause__.errors() if isinstance(error.__cause__, ValidationError) else []
            if found and found[0]["type"] != "value_error":  # Typer's own errors name the value
                error.message = wrong(found[0])
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; raises `ConfigError` if an output is also an input, or another output."""
        outputs = [one for one in self.params if getattr(one.callback, "__wrapped__", None) in OUTPUTS]
        read = set().union(*(_paths(ctx.params.get(one.name)) for one in self.params if one not in outputs))
        written: dict[Path, str] = {}
        for name, path in [(one.opts[0], path) for one in outputs for path in _paths(ctx.params[one.name])]:
            if path in read and path.is_file():
                raise ConfigError(f"{name} {path}: this command reads that file; name another file")
            other = written.setdefault(path, name)
            if other != name and (path.is_file() or not path.exists()):
                raise ConfigError(f"{name} {path}: {other} names the same file; name another file")
        return super().invoke(ctx)


def _paths(value: Any) -> set[Path]:
    """Return the paths that an option's value (one or several texts or paths) may name, without stdout."""
    values = value if isinstance(value, list | tuple) else [value]
    return {Path(realpath(one)) for one in values if isinstance(one, str | Path) and one != STDOUT}


class VerbGroup(TyperGroup):
    """A verb with sub-commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, flags without values."""
        return _without_values(super().get_params(ctx))


class Verbs(VerbGroup):
    """Turns an error that a user can cause into a message and an exit status; others are defects, with a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse words that are not UTF-8, since results could not contain them."""
        for word in args:
            if word.encode(errors="ignore").decode() != word:
                raise typer.BadParameter(f"{word!a} is not UTF-8; use another name", ctx=ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            with told_at_interruptions(lambda: "Interrupted."):
                return super().invoke(ctx)
        except (MirrorsdError, ModuleNotFoundError, OSError) as error:
            say(f"[bold red]Error:[/] {escaped(_told(error))}")
            raise typer.Exit(WRONG_INPUT) from error


def _told(error: MirrorsdError | ModuleNotFoundError | OSError) -> str:
    if isinstance(error, MirrorsdError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return missing_package(error)
    if error.errno == errno.EPIPE:
        raise error
    return cut(str(error))  # such as a name that is too long, a deleted folder, a full disk


app = typer.Typer(
    name="mirrorsd",
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Start here: [bold]mirrorsd demo[/]",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for path in VERBS.split():
    module, name = import_module(f"mirrorsd.cli.verbs.{path}"), path.rpartition(".")[2]
    if isinstance(verb := getattr(module, name), typer.Typer):
        for command in verb.registered_commands:
            command.cls = Verb
        app.add_typer(verb, name=name, cls=VerbGroup)
    else:
        app.command(name.strip("_"), cls=Verb, epilog=f"Example: [bold]{module.EXAMPLE}[/]")(verb)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mirrorsd {version('mirrorsd')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Does speculative decoding pay on your models, prompts and devices? Simulate, search, run, compare."""
