"""The policy: from text to an immutable configuration, and the places that it is read from.

Imports: `policies.core`, `policies.kube`, `puller`, `webhook`, `webhook.admission`, `webhook.kube`.
"""
