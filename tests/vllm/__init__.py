"""A real vLLM without an accelerator: installed, given a toy model, and hung in every way."""
