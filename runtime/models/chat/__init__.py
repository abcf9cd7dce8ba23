"""What a conversation becomes, by the template of its model."""
