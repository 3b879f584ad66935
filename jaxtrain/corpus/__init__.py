"""From raw text to documents worth training on. Never imports jax."""
