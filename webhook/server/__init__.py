"""The HTTPS server: supervisor, workers, connections, certificates and metrics.

| question | module |
|---|---|
| how `chassis serve` starts | `main`, with its flags in `server_flags` |
| which process watches which | `supervisor`, `worker`, `shared_memory` |
| which parts a worker has, and which needs which | `assembly` |
| how connections and bodies are limited | `connections`, `bodies` |
| how long a review may take | `reviews`: `time_limit`; until its worker is ended: `HOLD_SECONDS` |
| how a request becomes an answer | `admission_server`, `reviews`, `endpoints` |
| how requests in flight end before a replica stops | `worker`, by the drain of `admission_server` |
| how an answer is recorded | `journal`, in `metrics` and `log` |
| which running pods lack fields, and whose hang is noticed | `running_pods` |
| where the certificate comes from, and who trusts it | `tls_reload`, `pki`, `ca_bundle` |

Imports: `policies.core`, `policies.kube`, `policies.probes`, `puller`, `webhook`, `webhook.admission`,
`webhook.config`, `webhook.fast_path`, `webhook.kube`, `webhook.manifests`, `webhook.observed`,
`webhook.worker_names`.
"""
