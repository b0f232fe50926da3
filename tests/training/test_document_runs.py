"""Training with `memory.reset=document`: the memory that is carried forgets documents, and resumes as it was."""

from pathlib import Path

from tests.training.recorded_run import recorded_losses, recorded_run
from tests.training.small_run import stored_memory, tiny_config
from txl_lightning.config.schemas import plain

DOCUMENTS = ("memory.reset=document", "data.document_start='^line'", "optimizer.schedule=constant")


def losses_of(directory: Path, text: Path, *overrides: str) -> list[tuple[int, float]]:
    directory.mkdir()
    recorded_run(
        plain(tiny_config(text, *DOCUMENTS, *overrides)),
        str(directory),
        {},
    )
    return recorded_losses(directory)


def test_a_resumed_run_knows_where_its_documents_began(tmp_path: Path) -> None:
    options = ("memory.mem_len=24", "data.random_start=true", "trainer.stream_groups=2")
    whole = losses_of(tmp_path / "whole", tmp_path, *options)
    losses_of(tmp_path / "half", tmp_path, *options, "trainer.max_steps=5")
    last = tmp_path / "half/checkpoints/last.ckpt"
    in_document_B = stored_memory(last).state_dict()["in_document_B"]
    assert len(set(in_document_B.tolist())) > 1
    resumed = losses_of(
        tmp_path / "resumed",
        tmp_path,
        *options,
        f"resume={last}",
    )
    assert resumed == whole[5:]
