"""Waits in init containers and entrypoints.

Imports: `policies.commands`, `policies.containers`, `policies.core`, `policies.kube`.
"""
