"""The launcher of multiruns, `hydra/launcher=process`: every job in a process group of its own.

Hydra's plugin scan executes every module here anew, except those whose names begin with `_`; what has state or is
pickled lives in those.
"""
