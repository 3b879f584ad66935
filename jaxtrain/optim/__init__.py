"""Optimizers and learning-rate schedules, as one optax transformation built from the config."""
