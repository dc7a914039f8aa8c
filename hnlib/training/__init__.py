"""One run: its configuration, how it is trained, saved, resumed and evaluated, and its record."""
