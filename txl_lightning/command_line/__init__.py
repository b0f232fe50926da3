"""Shared parts of all commands: Hydra, the processes of a launcher, help and error messages."""
