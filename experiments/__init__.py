"""Tables and figures of the paper, and the command that reproduces them."""
