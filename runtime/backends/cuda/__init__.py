"""The CUDA back end: a decoder's calls are captured as CUDA graphs; in tests the CPU runs them directly."""
