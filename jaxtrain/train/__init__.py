"""The step, the state, the loop and checkpoints: the same for every stage."""
