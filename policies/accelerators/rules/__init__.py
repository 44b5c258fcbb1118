"""The rules about accelerators."""
