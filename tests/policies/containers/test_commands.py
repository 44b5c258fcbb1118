import shlex

from policies.containers.commands import words_of
from policies.kube.pods import Container, Role
from tests.tables import table


@table(
    ("image", "command", "args", "expected"),
    [
        ("amazon/aws-cli:2.15", "", "s3 sync s3://a /a", "aws s3 sync s3://a /a"),
        ("public.ecr.aws/aws-cli/aws-cli:2.15", "", "s3 ls", "aws s3 ls"),
        ("amazon/aws-cli:2.15", "aws", "s3 ls", "aws s3 ls"),
        ("amazon/aws-cli:2.15", "", "", ""),
        ("registry.k8s.io/pause:3.10", "", "", "pause"),
        ("acme/aws-cli:2.15", "", "s3 ls", "s3 ls"),
        ("registry.k8s.io/kubectl:v1.36.0", "", "wait job/a", "kubectl wait job/a"),
        ("bitnami/kubectl:1.31", "", "sh -c true", "sh -c true"),
        ("bitnami/kubectl:1.31", "", "/bin/sh -c true", "/bin/sh -c true"),
        ("curlimages/curl:8", "", "-f http://a", "curl -f http://a"),
        ("curlimages/curl:8", "", "http://a", "curl http://a"),
        ("curlimages/curl:8", "", "sh -c true", "sh -c true"),
        ("ghcr.io/groundnuty/k8s-wait-for:v2.0", "", "job a", "wait_for.sh job a"),
        ("registry.example/api:1", "", "serve", "serve"),
    ],
)
def test_words_of(image: str, command: str, args: str, expected: str) -> None:
    spec = {"name": "a", "image": image, "command": shlex.split(command), "args": shlex.split(args)}
    found = words_of(Container(spec, "containers", 0, Role.MAIN))
    assert shlex.join(found) == expected
