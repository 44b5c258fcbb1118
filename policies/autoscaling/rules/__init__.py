"""The rules about autoscalers."""
