"""Rules and mutators as pure functions over JSON, without I/O, clock, HTTP or Kubernetes client.

Imports: no other package of this repository.
"""
