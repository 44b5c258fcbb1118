"""Reading container and probe commands: argv and environment in, a typed summary out.

The reading is pure: it runs no command, looks up no name, and no input makes `read` raise. If only the
running container knows what a command reaches, the summary is undecided; a rule then warns and never denies.
Reading is paid for from a `Budget`, one for all the commands of a review. A command that can't be read whole
within it gives an empty summary that is not `complete`, and no decision may rest on it.

Other packages import only the names below; the modules are internal.

Imports: no other package of this repository.
"""

from policies.commands.budget import Budget, BudgetSpent
from policies.commands.children import children
from policies.commands.hosts import reach_of
from policies.commands.model import Command, CommandSummary, Host, Loop, Reach, ScriptFile
from policies.commands.options import OptionSyntax, parse_options, seconds
from policies.commands.reader import SHELLS, is_python, read

__all__ = [
    "SHELLS",
    "Budget",
    "BudgetSpent",
    "Command",
    "CommandSummary",
    "Host",
    "Loop",
    "OptionSyntax",
    "Reach",
    "ScriptFile",
    "children",
    "is_python",
    "parse_options",
    "reach_of",
    "read",
    "seconds",
]
