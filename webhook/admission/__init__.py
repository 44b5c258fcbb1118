"""The decision about one review, without HTTP and without a cluster.

| question | module |
|---|---|
| what is carried from step to step | `review` |
| which step follows which | `engine` |
| how a request is parsed | `envelope` |
| which requests are reviewed | `scope` |
| how much of an object is read | `bounds`; how that is said: `coverage` |
| where an unknown kind has pods | `shapes` |
| which modes and settings an object gets, by overrides for namespaces and labels | `configuration` |
| which mutators run, and how workloads' pods will look | `mutators`, `projection` |
| which rules run, and what they found | `rules` |
| what is wrong with the objects that its controller applies | `applied`, over `applied_objects` |
| which findings are exempted | `exemptions` |
| what an update may be refused for | `ratcheting` |
| whether a controller sent the request: its replacements are never refused | `controllers` |
| what the result is, and which of its findings an answer has | `decision` |
| how it is said | `messages` |
| which forms an answer has, and how each is made | `answer` |
| how long warnings may be, and which characters they have | `wrapping`, `printable` |
| how a patch and the annotation on the pod are made | `json_patch`, `changed_annotation` |
| how a running pod differs from a new one | `missed` |
| which requests are equal | `canonical` |

Imports: `policies.commands`, `policies.containers`, `policies.core`, `policies.kube`.
"""
