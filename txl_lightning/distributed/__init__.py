"""Processes: ranks of one run, how they are started, and the jobs of a multirun."""
