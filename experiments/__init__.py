"""What the paper showed, and the one command that shows it again."""
