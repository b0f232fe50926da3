"""Parts that every report shares: canvas, Markdown tables, W&B panels, the machine's name."""
