"""The engine for many runs: multiruns and the reproduction run their jobs with it.

A job is something to run, with a folder and an identity. `identity` says what a job computes, `folder` what it left and
who holds it, `processes` runs jobs side by side and ends them, `multirun` has the results of a multirun's jobs.
"""
