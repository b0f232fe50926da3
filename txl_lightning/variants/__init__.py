"""Other papers, a file each: a variant of the core's model with its options, chosen by `txl train variant=NAME`.

Only the variants' registry imports this package, by name. A variant has a dataclass with options, a subclass of
`TransformerXLConfig`, and a subclass of `TransformerXL`, whose `config_class` it is. `conf/variant/NAME.yaml` holds the
options' defaults.
"""
