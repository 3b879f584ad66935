"""From text to token ids and back. Never imports jax."""
