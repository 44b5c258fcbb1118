"""Decisions as one HTML file that fetches no other file.

| question | module |
|---|---|
| how the file is written, by which templates | `page` |
| what is counted | `summary`, in the words and order of `view` |
| what the details of an object show | `card`, with the `timeline` of its probes |
"""
