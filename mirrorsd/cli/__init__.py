"""The `mirrorsd` command: one small module per verb, which parses, calls and prints."""


def main() -> None:
    """Run the command line; the entry point that is installed as `mirrorsd`."""
    import io
    import sys

    from mirrorsd.cli.app import app

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a narrow encoding loses a dash, and not the answer
    app()
