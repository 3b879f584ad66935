"""Number formats: how a run computes and how its weight matmuls multiply."""
