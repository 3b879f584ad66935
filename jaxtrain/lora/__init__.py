"""Low-rank adaptation (LoRA, arXiv 2106.09685): a frozen base and small trained updates of it."""
