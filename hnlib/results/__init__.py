"""Compare runs: paired differences, diagnostics of embeddings."""
