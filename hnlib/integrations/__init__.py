"""The losses inside other people's trainers: a module for each, and an extra of its name."""
