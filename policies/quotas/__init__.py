"""What ResourceQuotas and LimitRanges admit.

Imports: `policies.core`, `policies.kube`, `policies.rollouts`.
"""
