"""The rules about rolling updates."""
