"""Writes what is generated from the code (docs/, the chart, versions), and builds what users download."""
