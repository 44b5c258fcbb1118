"""The rules about evictions and drains."""
