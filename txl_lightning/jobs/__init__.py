"""The engine for many runs: multiruns and the reproduction run their jobs with it.

A job is something to run, with a folder and an identity. `folder` says what a job computes, what it left and who holds
it; `processes` runs jobs side by side and ends them.
"""
