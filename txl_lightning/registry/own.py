"""Parent of modules from a user's files: unpickling one of their objects, as a SLURM job does, imports it first."""

from txl_lightning.registry import load_guests

load_guests()
