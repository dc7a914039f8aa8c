"""Compare runs: paired differences and their intervals."""


def spread(x) -> str:
    """Format the mean ± standard deviation over $n-1$, or the only value."""
    mean = f"{x.mean():.1f}".replace("-", "−")
    return f"{mean}\u00a0±\u00a0{x.std(ddof=1):.1f}" if len(x) > 1 else mean
