"""The `chassis` command: which subcommands there are, and what becomes of an error.

A subcommand is a module with `add_arguments(parser)`, which sets `run` as the parser's default: a function of
the parsed arguments to the exit status. It is imported only where it is asked for, and imports what it needs
when it runs, so that `--version` and `--help` cost no more than an interpreter's start.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from webhook.cli.exit_status import BAD_INPUT
from webhook.errors import UserError

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("webhook.server.main", "run the webhook"),
    "review": ("webhook.cli.review", "review manifests without a cluster"),
    "fix": ("webhook.cli.fix", "write missing fields and simple fixes into manifests"),
    "scan": ("webhook.cli.scan", "review the objects of a cluster"),
    "why": ("webhook.cli.why", "show who set each field of a pod or workload, why, and how to change it"),
    "graph": ("webhook.cli.graph", "show dependencies and the reach of a failure"),
    "tune": ("webhook.cli.tune", "show startup budgets and memory limits next to observed values"),
    "exemptions": ("webhook.cli.exemptions", "list exemptions with reason, age and end"),
    "explain": ("webhook.cli.explain", "explain a rule or policy, and how to fix its findings"),
    "policy": ("webhook.cli.policy", "check and test a policy, preview an edit, print the JSON Schema"),
    "manifests": ("webhook.cli.manifests", "print the installation as YAML"),
    "log-level": ("webhook.cli.log_level", "change the log level of a running server"),
    "completion": ("webhook.cli.completion", "print the completion script of a shell"),
    "certs": ("webhook.cli.certs", "create or show a serving certificate"),
    "unregister": ("webhook.cli.unregister", "delete the webhook configurations before a removal"),
}
"""Each subcommand's module, and the line of help about it."""
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "review manifests": ("review", "fix", "explain"),
    "look at a cluster": ("scan", "why", "graph", "tune", "exemptions"),
    "write a policy": ("policy",),
    "operate the webhook": ("serve", "manifests", "certs", "log-level", "unregister", "completion"),
}
"""The subcommands by task, as the help lists them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `chassis`; returns the exit status."""
    return _process("chassis") if argv is None else _run("chassis", argv)


def kubectl() -> int:
    """Entry point of the kubectl plugin: `kubectl chassis review -f x.yaml`."""
    return _process("kubectl chassis")


def _process(prog: str) -> int:
    """Run what the process was started for."""
    # There are no plugins of pydantic's here; to look for some it would read about every package there is.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    status = _run(prog, sys.argv[1:])
    gc.freeze()  # the process ends: no need to search all that it holds for cycles once more
    return status


def _run(prog: str, argv: Sequence[str]) -> int:
    args = _parser(prog, argv).parse_args(argv)
    if (color := getattr(args, "color", "auto")) != "auto":
        os.environ |= {"NO_COLOR": "1" if color == "never" else "", "FORCE_COLOR": "1"}
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except UserError as error:
        from policies.kube.printable import printable

        for problem in error.problems:
            print(printable(f"{prog}: {problem}"), file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader went away (`| head`); Python would complain again while it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


def whole_parser() -> argparse.ArgumentParser:
    """The parser with the arguments of all subcommands."""
    return _parser("chassis", list(COMMANDS))


def _parser(prog: str, argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        description="The admission webhook that gives ML workloads their chassis.",
        formatter_class=_Grouped,
    )
    parser.add_argument(
        "--version",
        action=_Version,
        detailed="-v" in argv,
        help="show program's version number and exit; with -v also the Python and the fast path",
    )
    parser.add_argument("-v", action="store_true", help=argparse.SUPPRESS)
    parser.command = next((each for each in argv if each in COMMANDS), "")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (module, help) in COMMANDS.items():
        command = commands.add_parser(name, help=help)
        if name in argv:
            importlib.import_module(module).add_arguments(command)
    return parser


class _Parser(argparse.ArgumentParser):
    """Prints an error in one line, as all others are printed, and not below a usage that fills the screen."""

    command = ""
    """Which one unknown arguments are for: argparse finds them after it has parsed the command's own."""

    def error(self, message: str) -> NoReturn:
        asked = f"{self.prog} {self.command}".rstrip()
        self.exit(BAD_INPUT, f"{asked}: {message}; {asked} --help lists the arguments\n")


class _Grouped(argparse.HelpFormatter):
    """Lists the subcommands by task; argparse knows one list only."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        width = max(map(len, COMMANDS)) + 2
        return "\n".join(
            "".join([f"  {group}:\n", *(f"    {name:<{width}}{COMMANDS[name][1]}\n" for name in names)])
            for group, names in GROUPS.items()
        )


class _Version(argparse.Action):
    """Prints the installed version, which is looked up only where it is asked for."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, detailed: bool = False, help: str | None = None
    ) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)
        self._detailed = detailed

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        from webhook.version import version

        print(f"chassis {version()}")
        if self._detailed:
            print(f"Python {sys.version.split()[0]}\nfast path: {_fast_path()}")
        parser.exit()


def _fast_path() -> str:
    """Whether `chassis serve` would use it here, as far as its environment decides."""
    from importlib.util import find_spec

    if find_spec("webhook.fast_path") is None:
        return "not in this build"
    return "off" if os.environ.get("CHASSIS_FAST_PATH") == "off" else "on"
