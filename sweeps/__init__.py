"""W&B sweeps, multirun recipes and the dashboard as code."""
