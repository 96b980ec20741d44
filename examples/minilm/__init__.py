"""A trained encoder with BERT's vocabulary on real sentences: what exact and searching attacks bring back of them."""
