"""Parent of the modules of a user's files: unpickling an object of theirs, as a job on SLURM does, imports it first."""

from txl_lightning.registry import load_guests

load_guests()
