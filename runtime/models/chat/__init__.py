"""Chat templates: a conversation as the text that its model was trained on."""
