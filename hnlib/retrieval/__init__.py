"""Retrieval: encoders of queries and documents, trained with any negatives, judged by search."""
