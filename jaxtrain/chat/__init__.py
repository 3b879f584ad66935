"""From a conversation to ids: one renderer for training, preferences, generation and serving."""
