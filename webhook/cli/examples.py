"""The examples at the end of each command's `--help`. A test parses each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "serve": (
        ("--policy configmap:mlchassis-system/mlchassis-policy --self-signed", "as in the Deployment"),
        ("--policy ./policy --tls-cert tls.crt --tls-key tls.key --port 8443", "on your own machine"),
    ),
    "review": (
        ("deploy/", "every manifest in a directory"),
        ("-o diff deploy/vllm.yaml", "what the webhook would add"),
        ("-k overlays/production", "the output of a kustomization"),
        ("--values production.yaml chart/", "the output of a chart"),
        ("--against staging deploy/", "together with the objects of a cluster"),
        ("--profile strict --warnings-as-errors deploy/", "in a pipeline"),
    ),
    "fix": (
        ("--diff deploy/", "show the changes"),
        ("deploy/", "write them"),
        ("--only standard-probes deploy/vllm.yaml", "only the probes"),
    ),
    "scan": (
        ("-A", "every namespace that you may read"),
        ("-n vision --view servers", "what the probes of model servers notice"),
        ("-A --missed", "pods that the webhook didn't see"),
        ("-A -o html", "a report for a browser"),
    ),
    "why": (
        ("pod/llm-0 -n chat", "a pod"),
        ("deployment/llm", "the pods that a Deployment gets"),
        ("-f pod.yaml", "a saved object"),
    ),
    "graph": (
        ("deploy/", "the dependencies between manifests"),
        ("-A --from feature-store", "what a failure of one workload reaches"),
        ("-o mermaid deploy/", "a diagram for a README"),
    ),
    "tune": (
        ("-A", "budgets compared with observed starts"),
        ("-n chat -o yaml", "patches that kubectl applies"),
    ),
    "exemptions": (
        ("-A", "in a cluster"),
        ("deploy/", "in manifests"),
    ),
    "explain": (
        ("", "all rules and policies"),
        ("liveness-external-dependency", "a rule: reason, bad and good YAML, fix"),
        ("standard-probes", "a policy and its settings"),
        ("vllm", "a model server"),
        ("kinds", "the kinds whose pods are read"),
    ),
    "policy": (
        ("check policy/", "check that it loads"),
        ("check configmap:mlchassis-system/mlchassis-policy", "check the installed policy"),
        ("diff policy/ new-policy/ -A", "what an edit would change in a cluster"),
        ("diff built-in policy/ deploy/", "what a policy changes for manifests"),
        ("test policy-tests/", "run the tests of a policy"),
        ("schema", "for an editor"),
    ),
    "manifests": (
        ("", "the installation; pipe it into kubectl apply -f -"),
        (
            "--overlay observe --image registry.example/ml-chassis:0.1.0",
            "only observe",
        ),
        ("--component network-policy --component hpa", "with options"),
    ),
    "log-level": (
        ("debug", "log each decision"),
        ("configured", "back to --log-level"),
    ),
    "completion": (
        ("bash", "source <(chassis completion bash)"),
        ("zsh", "write it to _chassis in a directory of $fpath"),
        ("fish", "chassis completion fish | source"),
    ),
    "certs": (
        ("issue --host chassis.example.com certs/", "create a CA and a certificate"),
        ("show tls.crt", "its hosts and expiry"),
    ),
    "unregister": (("", "before helm uninstall or kubectl delete"),),
}
"""Arguments and what they are for, by command."""


def epilog(command: str, prog: str = "chassis", subcommand: str = "") -> str:
    """The examples of a command, or of one of its subcommands, one in each line."""
    lines = [
        (f"{prog} {command} {arguments}".rstrip(), about)
        for arguments, about in EXAMPLES[command]
        if subcommand in ("", arguments.partition(" ")[0])
    ]
    width = min(max(len(line) for line, _ in lines), 48)
    return "\n".join(["examples:", *(f"  {line:<{width}}  # {about}" for line, about in lines)])
