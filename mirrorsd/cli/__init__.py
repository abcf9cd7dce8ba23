"""The `mirrorsd` command: one small module per verb, which parses, calls and prints."""
