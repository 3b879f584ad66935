"""jaxtrain: from raw text to an exported language model, in JAX on NVIDIA GPUs."""

__version__ = "0.1.0"
