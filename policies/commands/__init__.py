"""Reading container and probe commands: argv and environment in, a typed summary out.

Pure: nothing is run, nothing is looked up, and no input makes `read` raise. Where only the running
container knows what a command reaches, the summary says so; a rule then warns and never denies. What is
read is paid for from a `Budget`, one for all the commands of a review: a command that can't be read whole
within it gives a summary that is not `complete` and holds nothing, on which nothing may rest.

Used through the names below alone; the modules are the package's own.
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
