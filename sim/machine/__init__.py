"""The machine that a sequence or a batch is decoded on: devices, the memory they share, and the links between them."""
