"""The rules about waits at the start."""
