"""What of a benchmark stands in a corpus: words that compare, an index of items, hits, excision."""
