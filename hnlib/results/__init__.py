"""What runs say together: paired comparisons, their statistics, learning curves."""
