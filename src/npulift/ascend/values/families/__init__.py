"""References by family of operators; each file registers its own (see registry.gives)."""
