"""Model folders, their configurations and tokenizers, and the decoder in torch."""
