"""From rows as people have them to ids with a mask: what fine-tuning and preferences read.

    files ─ rows ─▶ records ─ forms ───────▶ Conversation ─ examples ─▶ ids, and which are trained
                            ─ comparisons ─▶ Comparison ─── groups ───▶ the same of its answers

No jax here, and no second renderer: `chat/` writes and marks the text, as it does for generation.
"""
