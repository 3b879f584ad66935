"""Losses: `loss(model, frozen, batch, rng) -> LossSums`, one file each."""
