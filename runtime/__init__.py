"""The PyTorch world: real models on real lanes."""
