"""A server that one review hangs."""

HANGING = """
import re, sys
from webhook.admission import engine

real = engine.mutate

def mutate(review):
    if review.request.name == "hangs":
        re.fullmatch("(a|aa)+b", "a" * 10_000)  # inside C, the interpreter's lock held
    return real(review)

engine.mutate = mutate
from webhook.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""A program, for `python -c`, with the arguments of `chassis`: any object named `hangs` hangs it."""
