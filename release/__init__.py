"""Generates docs/, the chart and the versions from the code, and builds the artefacts that users download."""
