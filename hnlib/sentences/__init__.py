"""Sentences: encoders trained on neighbouring sentences, with any negatives."""
