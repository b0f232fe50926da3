"""Other papers, a file each: a variant of the core's model with its own options, chosen by `txl train variant=NAME`.

Nothing imports this package but the registry of variants, by name. A variant has a dataclass of
options, a subclass of `TransformerXLConfig`, and a subclass of `TransformerXL`, whose
`config_class` it is. `conf/variant/NAME.yaml` holds the options' defaults.
"""
