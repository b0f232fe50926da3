"""Processes: the ranks that share a run, how they are started, and the jobs in a multirun."""
