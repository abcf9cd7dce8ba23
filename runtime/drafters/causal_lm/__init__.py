"""Any small model with the target's tokenizer as the draft."""
