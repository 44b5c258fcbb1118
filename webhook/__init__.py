"""The admission webhook: the decision, the server, and the command line.

| question | module |
|---|---|
| how a request is decided | `admission`, by the policy of `config` |
| how the server answers | `server`; repeated requests: `fast_path` |
| how an API server is read, and manifests in its place | `kube`, `manifests` |
| which names Ray workers get | `worker_names` |
| what the leader of the replicas observes | `observed` |
| what the command `chassis` does | `cli` |
| which version this is | `version` |
| which errors end in a sentence for people | `errors` |

Imports: no other package of this repository.
"""
