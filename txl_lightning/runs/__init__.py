"""What a run leaves: checkpoint files, the model behind a configuration, units of loss."""
