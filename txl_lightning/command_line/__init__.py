"""How a row of `txl_lightning.cli` runs: Hydra, the processes of a launcher, help and error messages."""
