"""Choice of the checkpoint that a run resumes from, and whether it may."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from txl_lightning.config.lengths import evaluation_lengths
from txl_lightning.config.schemas import Config, flat, from_plain, plain
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.errors import OptionError, UserError
from txl_lightning.runs.trained import read_checkpoint
from txl_lightning.training.checkpointing import BEST, LAST, PREVIOUS
from txl_lightning.training.wandb_run import HISTORY

# A resumed run must have the options of the checkpoint's run, but for where the files of the corpus are. An option that
# an older checkpoint lacks has its default there. `memory.segments` only gives `memory.mem_len` its value.
FIXED_GROUPS = ("data", "model", "encoding", "memory", "optimizer")
FIXED_OPTIONS = ["seed", "loss", "trainer.precision"]
FREE_OPTIONS = ("data.root", "data.path", "data.tokenizer", "data.cache_dir", "model.name", "memory.segments")


def find_checkpoint(config: Config, directory: Path, ranks: Ranks) -> tuple[Path | None, dict[str, Any] | None]:
    """Return path and contents of the checkpoint that `resume` names; None to start from scratch.

    `auto` means the last good checkpoint of the run directory. Rank 0 chooses it and reports the choice.
    """
    if config.resume != "auto":
        path = None if config.resume is None else Path(config.resume)
    else:
        path, messages = ranks.first(last_good(directory / "checkpoints") if ranks.rank == 0 else (None, []))
        choice = "starting from scratch" if path is None else f"resuming from {path}"
        none = f"no checkpoint in {directory / 'checkpoints'}, " if path is None and not messages else ""
        _report(ranks, *messages, f"resume=auto: {none}{choice}")
    contents = None if path is None else read_checkpoint(path, option="resume")
    if contents is not None and lacks_memory(config, contents):
        n_tokens = config.memory.mem_len + config.memory.compressed_len * config.memory.rate
        _report(
            ranks,
            f"resume={path} holds no training memory (checkpoint.memory=false): it fills again over the next "
            f"{n_tokens} tokens of every stream, and the run will differ from an uninterrupted one",
        )
    return path, contents


def continues_in(directory: Path, resumed_from: Path | None) -> bool:
    """Return whether a run resumes from a checkpoint of its own directory, whose curves it continues."""
    return resumed_from is not None and resumed_from.parent.resolve() == (directory / "checkpoints").resolve()


def clear_earlier_run(config: Config, directory: Path) -> None:
    """Remove metrics and curves of an earlier run in the directory of a new one, and tell the user.

    Its checkpoints are removed by the new run's first one. With `resume=auto` the rows of W&B stay: a session that was
    killed before its first checkpoint is the same run.
    """
    names = ["metrics.json", "metrics.csv", "validation.jsonl", "context_curve.jsonl"]
    names += [HISTORY] if config.resume != "auto" else []
    found = [directory / name for name in names if (directory / name).exists()]
    if found or (directory / "checkpoints" / LAST).exists():
        what = "which this one replaces"
        if not config.checkpoint.enabled:
            what = "whose curves this one replaces; its checkpoints stay (checkpoint.enabled=false)"
        print(f"{directory} holds an earlier run, {what}", file=sys.stderr, flush=True)
    for path in found:
        path.unlink()


def validation_protocol(config: Config) -> dict[str, Any]:
    """Return the options that decide which tokens a validation during training scores, and with which context."""
    evaluation = config.evaluation
    options = {"segment_len": evaluation.segment_len, "batch_size": evaluation.batch_size}
    named = {f"evaluation.{name}": value for name, value in {**evaluation_lengths(config), **options}.items()}
    return {**named, "trainer.val_max_segments": config.trainer.val_max_segments}


def is_validated_alike(config: Config, path: Path, record: dict[str, Any], ranks: Ranks) -> bool:
    """Return whether the losses of the resumed run's validations can be compared with those from now on.

    Otherwise rank 0 names the first option that differs.

    Args:
        config: config of the resumed run.
        path: path of the checkpoint.
        record: `txl_lightning` of the checkpoint.
        ranks: the processes of the run.
    """
    before, now = validation_protocol(from_plain(record["config"])), validation_protocol(config)
    different = [name for name in now if before.get(name) != now[name]]
    if different:
        name = different[0]
        _report(
            ranks,
            f"{name} is {now[name]}, and {before.get(name)} in resume={path}: losses of validation cannot be compared, "
            "so the next validation makes a new best.ckpt",
        )
    return not different


def last_good(directory: Path) -> tuple[Path | None, list[str]]:
    """Return the newest intact checkpoint of a run, and a message for each damaged one.

    Prefers `last.ckpt`; if it is missing or damaged, the later of `previous.ckpt` and `best.ckpt`.
    """
    messages: list[str] = []
    steps: dict[Path, int] = {}
    for name in (LAST, PREVIOUS, BEST):
        path = directory / name
        if not path.exists():
            continue
        try:
            steps[path] = int(read_checkpoint(path)["global_step"])
        except UserError as error:
            messages.append(str(error).replace("checkpoint=", "", 1))
        if name == LAST and path in steps:
            break
    return max(steps, key=lambda path: steps[path], default=None), messages


def online_run(config: Config, record: dict[str, Any]) -> str | None:
    """Return the id of the online W&B run that a resumed run continues; None unless both are online.

    Args:
        config: config of the resumed run.
        record: `txl_lightning` of the checkpoint.
    """
    both_online = config.logger.mode == record["config"]["logger"]["mode"] == "online"
    return record.get("wandb_id") if both_online else None


def lacks_memory(config: Config, checkpoint: dict[str, Any]) -> bool:
    """Return whether a checkpoint was written without the training memory that the run needs."""
    state = checkpoint.get("training_memory", {})
    return bool(config.memory.mem_len and state.get("next_number")) and state.get("memory") is None


def _report(ranks: Ranks, *lines: str) -> None:
    if ranks.rank == 0:
        for line in lines:
            print(line, file=sys.stderr, flush=True)


def check_same_run(config: Config, path: str, checkpoint: dict[str, Any], corpus: str) -> None:
    """Check that a checkpoint is of a run with the same model, corpus, streams, memory, loss, precision and optimizer.

    Raises:
        OptionError: an option differs (names the first one), or the file holds weights only.
    """
    if "pytorch-lightning_version" not in checkpoint:
        raise OptionError("resume", path, "holds weights only: start from them with initial_weights=")
    record = checkpoint["txl_lightning"]
    before, now = flat(plain(from_plain(record["config"]))), flat(plain(config))
    fixed = [name for group in FIXED_GROUPS for name in now if name.startswith(f"{group}.")] + FIXED_OPTIONS
    without_effect = () if config.memory.reset == "document" else ("data.document_start",)
    for name in fixed:
        if name not in (*FREE_OPTIONS, *without_effect) and name in before and before[name] != now[name]:
            option = name.removesuffix(".name") if name.count(".") == 1 else name
            raise OptionError(option, now[name], f"must be {before[name]}, as in resume={path}")
    if record.get("corpus", corpus) != corpus:
        raise OptionError("resume", path, "was trained on another text than this corpus has now")
