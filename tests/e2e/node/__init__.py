"""A real node for the control plane: containerd, runc, kubelet and kube-proxy in namespaces of their own.

Nothing is installed and nothing outside of those namespaces changes. What is built or downloaded lies in
the cache, keyed by what goes into it; what a run makes ends with the run, also when it is killed.

    python -m tests.e2e.node COMMAND...     run a command inside such namespaces, e.g. pytest -m realnode
"""
