"""The tools that make this book; a user of the losses does not need them."""
