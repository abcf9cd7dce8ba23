"""A decoder as captured graphs over static buffers, replayed on a GPU; the CPU stands in for one in tests."""
