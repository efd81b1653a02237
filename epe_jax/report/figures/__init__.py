"""What a finished audit looks like, drawn without pyplot."""
