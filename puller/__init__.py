"""The sidecar: keeps the models of a pod equal to a ConfigMap.

Imports: `puller.servers`, `puller.storage`.
"""
