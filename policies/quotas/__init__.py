"""What ResourceQuotas and LimitRanges admit.

| question | module |
|---|---|
| how many pods a quota admits | `quotas` |
| which defaults a namespace sets | `limit_ranges` |

Imports: `policies.containers`, `policies.core`, `policies.kube`, `policies.rollouts`.
"""
