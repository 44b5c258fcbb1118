"""Decisions as one HTML file to look at: everything in it, nothing fetched."""
