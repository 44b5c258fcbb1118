"""The formats of `--output`, one module each.

| question | module |
|---|---|
| which format is chosen | `show` |
| for people | `text`, `diff`, `statistics`; an HTML page: `html` |
| for programs | `json`, `yaml`, `junit`, `sarif`, `policyreport` |

Reviews are read and released one by one, so that a cluster does not have to fit in memory.
"""
