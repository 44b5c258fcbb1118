"""The HTTPS server: supervisor, workers, connections, certificates and metrics.

Imports: `policies.core`, `policies.kube`, `puller`, `webhook`, `webhook.admission`, `webhook.config`,
`webhook.fast_path`, `webhook.kube`, `webhook.manifests`, `webhook.observed`,
`webhook.worker_names`.
"""
