"""The rules about other admission webhooks."""
