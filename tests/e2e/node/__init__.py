"""A real node for the control plane: containerd, runc, the kubelet and kube-proxy in separate namespaces.

It installs no package and changes no file outside of those namespaces. Built and downloaded files are in the
cache, keyed by their inputs; the results of a run end with the run, also if it is killed.

    python -m tests.e2e.node COMMAND...     run a command inside such namespaces, e.g. pytest -m realnode
"""
