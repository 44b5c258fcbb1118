"""Reading container and probe commands: argv and environment in, a typed summary out.

Pure: nothing is run, nothing is looked up, and no input makes it raise. Where only the running container
knows what a command reaches, the summary says so; a rule then warns and never denies.
"""

from policies.commands.model import Command, CommandSummary, Host, How, Loop, Reach, ScriptFile
from policies.commands.reader import read

__all__ = ["Command", "CommandSummary", "Host", "How", "Loop", "Reach", "ScriptFile", "read"]
