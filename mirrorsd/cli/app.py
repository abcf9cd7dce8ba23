"""The command with its verbs, and what becomes of an error or of Ctrl-C in any of them."""

from __future__ import annotations

import errno
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from decoding.errors import MirrorsdError, cut
from mirrorsd.cli.console import INTERRUPTED, WRONG_INPUT, escaped, say, with_default_destination
from mirrorsd.cli.options import example
from mirrorsd.cli.verbs import (
    calibrate,
    curve,
    demo,
    devices,
    import_,
    plan,
    record,
    report,
    reproduce,
    run,
    search,
    simulate,
    validate,
)
from mirrorsd.cli.verbs.models import models
from mirrorsd.cli.verbs.profiles import profiles
from mirrorsd.cli.verbs.published import retrodict
from mirrorsd.cli.verbs.train import train

RUN: Final = frozenset({"gguf", "huggingface_hub", "ml_dtypes", "openvino", "safetensors", "tokenizers", "torch"})
"""Top-level modules of the extra `run`: all that loads models and decodes; pyproject.toml lists their packages."""


def missing_package(error: ModuleNotFoundError) -> str:
    """Return the message for a missing package of an extra; raises the error where its module belongs to none."""
    name = (error.name or "").partition(".")[0]
    if name not in RUN:
        raise error
    return f"{name} is not installed, and this command needs it: pip install 'mirrorsd[run]'"


class Verbs(TyperGroup):
    """Turn an error that a user can cause into one message and an exit status; anything else is a defect and shows."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Allow `--json` without a value."""
        return super().parse_args(ctx, with_default_destination(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except MirrorsdError as error:
            say(f"[bold red]Error:[/] {escaped(error)}")
            raise typer.Exit(WRONG_INPUT) from error
        except ModuleNotFoundError as error:
            say(f"[bold red]Error:[/] {escaped(missing_package(error))}")
            raise typer.Exit(WRONG_INPUT) from error
        except OSError as error:  # names too long, a folder that is gone, an output that is full
            if error.errno == errno.EPIPE:
                raise
            say(f"[bold red]Error:[/] {escaped(cut(str(error)))}")
            raise typer.Exit(WRONG_INPUT) from error
        except KeyboardInterrupt as error:
            say("Interrupted.")
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    name="mirrorsd",
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Start here: [bold]mirrorsd demo[/]",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models, name="models")
app.add_typer(profiles, name="profiles")
app.command(epilog=example(devices.EXAMPLE))(devices.devices)
app.command(epilog=example(calibrate.EXAMPLE))(calibrate.calibrate)
app.command(epilog=example(record.EXAMPLE))(record.record)
app.command(epilog=example(search.EXAMPLE))(search.search)
app.command(epilog=example(plan.EXAMPLE))(plan.plan)
app.command(epilog=example(curve.EXAMPLE))(curve.curve)
app.command("import", epilog=example(import_.EXAMPLE))(import_.import_)
app.command(epilog=example(reproduce.EXAMPLE))(reproduce.reproduce)
app.command(epilog=example(retrodict.EXAMPLE))(retrodict.retrodict)
app.command(epilog=example(simulate.EXAMPLE))(simulate.simulate)
app.command(epilog=example(run.EXAMPLE))(run.run)
app.command(epilog=example(validate.EXAMPLE))(validate.validate)
app.command(epilog=example(demo.EXAMPLE))(demo.demo)
app.command(epilog=example(report.EXAMPLE))(report.report)
app.add_typer(train, name="train")


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
