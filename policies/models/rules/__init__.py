"""The rules about model configs."""
