"""Which documents say what another already says: exact, near and span-wise, over a whole corpus."""
