"""Coverage-guided fuzzing of what reads users' texts: `make fuzz`, or `python -m tests.fuzz TARGET --runs N`.

`targets` has the readers and their promises; `corpus/TARGET/` keeps inputs that once found something or
reach far. The ordinary tests read the corpus, too.
"""
