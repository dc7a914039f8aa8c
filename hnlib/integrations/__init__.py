"""The losses inside other people's trainers: a room for each, and an extra of its name."""
