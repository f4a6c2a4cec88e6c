"""Independent judges, and the registry of maps that the laws run over."""
