"""Kernels of our own for NVIDIA GPUs (Pallas, by way of Triton), where XLA has no fast path.

docs/kernels.md says which runs when, and what has been checked of them.
"""
