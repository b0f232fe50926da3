"""Options that were set and change nothing, because of another option."""

from __future__ import annotations

from txl_lightning.config.lengths import encoding_kind
from txl_lightning.config.schemas import Config, DataConfig, MemoryConfig, RecurrentModelConfig


def options_without_effect(config: Config) -> list[str]:
    """Return a sentence for every option that is not read and has another value than its default.

    They are allowed, because a multirun combines options that do not all belong together.
    """
    memory, data, encoding, kind = config.memory, config.data, config.encoding, encoding_kind(config)
    recurrent, resumed = isinstance(config.model, RecurrentModelConfig), config.resume not in (None, "auto")
    no_attention = f"model={config.model.name} has no attention"
    no_states = no_attention if recurrent else "there is no memory" if memory.mem_len == 0 else None
    no_compression = None if memory.compression else "only memory=compressive compresses states"
    no_table = no_attention if recurrent else None if kind.table else f"encoding={encoding.name} has no table"
    other_corpus = None if data.name == "enwik8" else "it is for data=enwik8"
    # The other corpora have a default in conf/data, which says what their documents are.
    never_reset = "only memory.reset=document reads it" if data.name == "file" and memory.reset == "never" else None
    options = (
        # option, value, default, why it is not read (None if it is)
        ("encoding", encoding.name, "relative", no_attention if recurrent else None),
        ("encoding.table_len", encoding.table_len, None, no_table),
        ("encoding.interpolation", encoding.interpolation, 1.0, no_attention if recurrent else None),
        ("memory.start", memory.start, MemoryConfig.start, no_states),
        ("memory.rate", memory.rate, MemoryConfig.rate, no_compression),
        ("memory.compression_loss", memory.compression_loss, MemoryConfig.compression_loss, no_compression),
        ("data.newlines", data.newlines, DataConfig.newlines, other_corpus),
        ("data.document_start", data.document_start, None, never_reset),
        ("initial_weights", config.initial_weights, None, "resume has weights too" if resumed else None),
    )
    return [
        f"{option}={value} has no effect: {reason}"
        for option, value, default, reason in options
        if reason and value != default
    ]
