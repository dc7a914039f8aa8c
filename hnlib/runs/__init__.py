"""Runs: training, checkpoints, readouts, records of what was measured, and their comparison."""
