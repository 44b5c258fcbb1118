"""The policy: from text to an immutable configuration, and its sources.

Imports: `policies.core`, `policies.kube`, `puller`, `webhook`, `webhook.admission`, `webhook.kube`,
`webhook.manifests`.
"""
