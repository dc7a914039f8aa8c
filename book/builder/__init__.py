"""What makes the pages of the book: in a checkout only, started by `make book` and `make pdf`."""
