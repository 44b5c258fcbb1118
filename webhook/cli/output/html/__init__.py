"""Decisions as one HTML file that fetches no other file."""
