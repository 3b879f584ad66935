"""From rows as people have them to ids with a mask: what supervised fine-tuning reads.

    files ─ rows ─▶ records ─ forms ─▶ Conversation ─ examples ─▶ ids, and which of them are trained

No jax here, and no second renderer: `chat/` writes and marks the text, as it does for generation.
"""
