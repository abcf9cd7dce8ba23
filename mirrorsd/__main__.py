"""Makes `python -m mirrorsd` the same as the command `mirrorsd`."""

from mirrorsd.cli import main

if __name__ == "__main__":
    main()
