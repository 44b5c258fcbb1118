"""Reading and copying Kubernetes JSON: metadata, pods, field paths, names, quantities and probe timing.

Imports: `puller`.
"""
