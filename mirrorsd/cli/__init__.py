"""The `mirrorsd` command line: one small module per verb, which parses options, calls the library and prints."""


def main() -> None:
    """Run the command line; the entry point that is installed as `mirrorsd`."""
    import io
    import sys

    try:
        from mirrorsd.cli.app import app  # takes some tenths of a second
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an encoding without a character must not cause an error
    app()
