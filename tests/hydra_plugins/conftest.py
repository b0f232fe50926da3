"""Import of Optuna 2, which uses a name that SQLAlchemy 2 has moved and warns about."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import optuna  # noqa: F401
