"""Both worlds side by side, and files of what came out."""
