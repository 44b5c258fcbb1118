"""Storage: from a URI to a complete, verified tree of files.

| question | module |
|---|---|
| how one model is fetched, in one or more attempts, and whether its bytes are the right ones | `fetch` |
| how a broken download goes on | `resumable_download` |
| which objects a URI leads to | `source`; what an object is: `objects` |
| s3, gs and azure | `cloud`; the bucket and its credentials: `locate`, `s3_settings` |
| http and https | `web`, over `webclient`: connections, redirects, proxies, time-outs |
| hf | `hub` |
| oci | `oci`, with `registry_auth` |
| file and pvc | `local` |
| how many connections there are, and who gets one | `connections` |
| which addresses may be reached | `addresses` |
| archives, and the layers of images | `archive`, with `zip_directory` |
| how much disk the models may take | `disk_budget` |
| the cache that pods share, and which models leave it for others | `cache` |
| what all of them share | `base`: errors, limits, progress, safe paths |

Imports: `puller`.
"""
