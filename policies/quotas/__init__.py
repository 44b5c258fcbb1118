"""What ResourceQuotas, LimitRanges and Pod Security levels admit.

| question | module |
|---|---|
| how many pods a quota admits | `quotas` |
| which defaults a namespace sets | `limit_ranges` |
| which fields of pods a level refuses | `pod_security` |

Imports: `policies.containers`, `policies.core`, `policies.kube`, `policies.rollouts`.
"""
