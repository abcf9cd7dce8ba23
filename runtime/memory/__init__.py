"""What models and lanes take of memory, and whether it is there."""
