"""The `mirrorsd` command: one small module per verb, which parses, calls and prints."""


def main() -> None:
    """Run the command line; the entry point that is installed as `mirrorsd`."""
    from mirrorsd.cli.app import app

    app()
