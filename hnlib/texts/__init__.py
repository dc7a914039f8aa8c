"""Texts: their tokens, encoders and benchmarks, for sentences and for retrieval."""
