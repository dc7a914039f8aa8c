"""A task of your own: a file whose `train` trains, and returns scores."""
