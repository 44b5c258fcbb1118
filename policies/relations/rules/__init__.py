"""The rules about dependencies between objects."""
