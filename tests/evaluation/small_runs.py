"""Short runs of every kind of model, each trained once, at its first use."""

from pathlib import Path

from tests.data.helpers import files
from tests.training.small_run import tiny_config
from txl_lightning.training.run import train

KINDS = {
    "relative": ["memory=on"],
    "documents": ["memory=on", "memory.reset=document", "data.document_start='^line'"],
    "sentences": [
        *("data.name=lm1b", "data.level=word", "data.sentence_marks=both", "memory=on"),
        *(
            "memory.reset=document",
            "trainer.max_steps=80",
            "trainer.val_every_n_steps=80",
            "optimizer.lr=0.01",
        ),
    ],
    "characters": ["data.level=char"],
    "words": ["data.level=word", "data.min_count=1"],
    "absolute": ["memory=off", "encoding=absolute", "loss=half"],
    "extended": [
        "data.level=char",
        "memory=off",
        "encoding=absolute",
        "loss=half",
        "model.ext_len=2",
    ],
    "al_rfou": ["data.level=char", "memory=off", "encoding=al_rfou"],
    "shaw": ["memory=on", "encoding=shaw", "model.terms=ab"],
    "no_memory": ["data.level=char", "memory=off"],
    "shaw_words": ["data.level=word", "memory=off", "encoding=shaw"],
    "rope": ["data.level=char", "memory=on", "encoding=rope", "model.d_head=8"],
    "alibi": ["data.level=char", "memory=on", "encoding=alibi"],
    "none": ["data.level=char", "memory=on", "encoding=none", "loss=half", "model.ext_len=2"],
    "lstm": ["model=lstm", "model.d_model=16"],
    "compressive": ["variant=compressive", "variant.rate=2"],
    "tokens": ["variant=memory_tokens", "variant.n_tokens=3", "memory=off"],
    "qrnn": ["model=qrnn", "model.d_model=16"],
}
ELSEWHERE = "elsewhere"  # a run on another text


class SmallRuns:
    """Runs on `text.txt` in a folder, by kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def directory(self, kind: str) -> Path:
        """The directory of a run; of an unknown kind, a path that does not exist."""
        directory = self.folder / kind
        if not directory.exists() and kind in (*KINDS, ELSEWHERE):
            place = self.folder
            if kind == ELSEWHERE:
                place = self.folder / "other"
                files(place, {"text.txt": "another text\n" * 200})
            steps = ("trainer.max_steps=2", "trainer.val_every_n_steps=2")
            config = tiny_config(
                place,
                *steps,
                *KINDS.get(kind, []),
            )
            if config.data.name == "lm1b":
                lines = "the cat sat \nthe cat sat still \nthe cat sat still still \n"
                numbers = {"train": 90, "valid": 5, "test": 5}
                files(
                    place / "lm1b",
                    {f"{split}.txt": lines * n for split, n in numbers.items()},
                )
                config.data.root = str(place)
            train(config, directory)
        return directory

    def checkpoint(self, kind: str) -> str:
        """The best checkpoint of a run."""
        return str(self.directory(kind) / "checkpoints/best.ckpt")
