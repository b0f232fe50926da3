"""Launcher of multiruns, `hydra/launcher=process`: every job in a process group of its own.

Hydra's plugin scan executes every module of this package a second time, except those whose names begin with `_`.
Classes that are pickled and state therefore live in modules with a leading underscore.
"""
