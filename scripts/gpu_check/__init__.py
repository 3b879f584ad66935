"""One run that says what of this project is right and fast on a GPU: scripts/gpu_check.sh."""
