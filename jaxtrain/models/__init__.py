"""The model: one decoder for all families, its parameters as plain trees, its costs."""
