"""Other papers, a file each: a variant of the core's model with its own options, chosen by `txl train beyond=NAME`.

Nothing imports this room but `runs.models.beyond`, by name. A file has a dataclass of options, a subclass of
`TransformerXLConfig`, and a subclass of `TransformerXL`, whose `config_class` it is. `conf/beyond/NAME.yaml` holds the
options' defaults.
"""
