"""The rules about the life of model servers."""
