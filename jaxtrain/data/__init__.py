"""From token stores to batches: NumPy, tensorstore and Grain, without jax."""
