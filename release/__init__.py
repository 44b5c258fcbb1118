"""Builds everything that a user downloads: `python -m release`."""
