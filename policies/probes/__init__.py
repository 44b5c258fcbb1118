"""Model servers, their health endpoints and start times, and the mutator `standard-probes`.

Imports: `policies.commands`, `policies.containers`, `policies.core`, `policies.kube`, `puller`.
"""
