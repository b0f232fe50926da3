"""Options of earlier versions: the command line refuses them by name, and configs of checkpoints are translated."""

from __future__ import annotations

from typing import Any

# Old name -> new name. A group stands for its options too.
RENAMED = {
    "beyond": "variant",
}
# Old name -> what to do instead.
REMOVED = {
    "trainer.graph": "was removed: no GPU ever ran it; trainer.compile=true compiles the step",
    "data.block_len": "was removed: data.distance may be a list of distances, which take turns",
    "trainer.kernel": "was removed: set Attention.kernel (docs/gpus.md)",
}


def why_refused(option: str) -> str | None:
    """Return the sentence that refuses an option of an earlier version; None for any other option."""
    for old, new in RENAMED.items():
        if option == old or option.startswith(f"{old}."):
            return f"is now {new}{option.removeprefix(old)}"
    return REMOVED.get(option)


def with_new_names(values: dict[str, Any]) -> dict[str, Any]:
    """Return a nested config of an earlier version under the names of this one, without the options that are gone."""
    options = dict(values)
    for old, new in RENAMED.items():
        if old in options:
            options[new] = options.pop(old)
    for old in REMOVED:
        group, _, name = old.partition(".")
        if name in options.get(group, {}):
            options[group] = {key: value for key, value in options[group].items() if key != name}
    return options
