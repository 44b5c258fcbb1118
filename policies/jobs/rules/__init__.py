"""The rules about Jobs."""
