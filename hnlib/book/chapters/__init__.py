"""Definitions of the chapters; each is shown where it is first used."""
