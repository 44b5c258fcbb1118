"""The rules about probes."""
