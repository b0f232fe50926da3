"""Cost of preparing a text: CPU seconds and memory of whole processes, in turns.

    python -m benchmarks.preparation --text FILE [--rounds 5] [--only CASES] [--against CHECKOUT] [--original FOLDER]

Cases: plain text at level char, the same text as JSON lines (cold, and again from the cache), words, BPE of 8,192
tokens, documents marked at level byte, `tokenizers` alone and `datasets.map` with the same merges, and the paper's
`data_utils.py` with words. FILE is UTF-8 text, and its lines are the records of the JSON lines. The imports that a case
needs count too; the row `imports` has their cost.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

LOAD = """
from txl_lightning.config.schemas import FileData
from txl_lightning.data.corpus import load_corpus
load_corpus(FileData(name="file", path=r"{path}", cache_dir=r"{cache}", {options}), marked={marked})
"""
TRAIN = """
from txl_lightning.data.subwords import train_byte_pairs
with open(r"{text}", encoding="utf-8", newline="") as file:
    tokenizer = train_byte_pairs(file, 8192)
with open(r"{tokenizer}", "w", encoding="utf-8") as file:
    file.write(tokenizer)
"""
TOKENIZERS = """
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(r"{tokenizer}")
with open(r"{text}", encoding="utf-8", newline="") as file:
    n = sum(len(found.ids) for found in tokenizer.encode_batch_fast(file.readlines(), add_special_tokens=False))
"""
DATASETS = """
import datasets
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(r"{tokenizer}")
rows = datasets.load_dataset("json", data_files=r"{json}", cache_dir=r"{cache}", split="train")
encode = lambda batch: {{"ids": [found.ids for found in tokenizer.encode_batch_fast(batch["text"])]}}
rows.map(encode, batched=True, remove_columns=["text"])
"""
ORIGINAL = """
import sys
sys.path.insert(0, r"{original}")
from utils.vocabulary import Vocab
vocabulary = Vocab(special=["<eos>"], lower_case=False)
vocabulary.count_file(r"{text}")
vocabulary.build_vocab()
vocabulary.encode_file(r"{text}", ordered=True)
"""


def cases(text: Path, folder: Path, original: str | None) -> dict[str, str]:
    """Return the code of every case by name; writes the text as JSON lines, and a tokenizer of 8,192 tokens.

    Args:
        text: UTF-8 text.
        folder: folder for these files, and for what the cases write.
        original: folder of the paper's PyTorch code; None leaves its case out.
    """
    lines, tokenizer = folder / "text.jsonl", folder / "tokenizer.json"
    with text.open(encoding="utf-8") as file, lines.open("w", encoding="utf-8") as written:
        written.writelines(json.dumps({"text": line}) + "\n" for line in file if line.strip())
    subprocess.run([sys.executable, "-c", TRAIN.format(text=text, tokenizer=tokenizer)], check=True)
    bpe = f'level="bpe", tokenizer=r"{tokenizer}"'

    def load(path: Path, options: str, marked: bool = False) -> str:
        return LOAD.format(path=path, cache="{cache}", options=options, marked=marked)

    found = {
        "imports": "import txl_lightning.data.corpus",
        "text, char": load(text, 'level="char"'),
        "JSON lines, char": load(lines, 'level="char"'),
        "JSON lines, char, again": load(lines, 'level="char"'),
        "text, words": load(text, 'level="word"'),
        "text, BPE": load(text, bpe),
        "documents, byte": load(text, 'level="byte", document_start="^$"', True),
        "tokenizers": TOKENIZERS.format(tokenizer=tokenizer, text=text),
        "datasets.map": DATASETS.format(tokenizer=tokenizer, json=lines, cache="{cache}"),
    }
    return found | ({} if original is None else {"data_utils.py, words": ORIGINAL.format(original=original, text=text)})


def measured(code: str, checkout: Path) -> tuple[float, float]:
    """Return CPU seconds and the most memory in MB of a process that runs the code in a checkout."""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=checkout, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"a case ended with status {status}:\n{code}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def main(words: Sequence[str] | None = None) -> None:
    """Print a table of medians; every round runs all cases once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--original")
    options = parser.parse_args(words)
    checkouts = {"this": Path.cwd()} | ({} if options.against is None else {options.against.name: options.against})
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        chosen = cases(options.text.absolute(), folder, options.original)
        if options.only:
            chosen = {name: code for name, code in chosen.items() if name in options.only.split(";")}
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for turn in range(options.rounds):
            for name, code in chosen.items():
                for checkout, path in checkouts.items():
                    if path == Path.cwd() or "txl_lightning" in code:
                        cache = folder / f"{turn}.{checkout}.{name.removesuffix(', again')}".replace(" ", "_")
                        row = measured(code.replace("{cache}", str(cache)), path)
                        found.setdefault((name, checkout), []).append(row)
    print("| case | checkout | CPU s | MB |\n| --- | --- | ---: | ---: |")
    for (name, checkout), rows in found.items():
        seconds, megabytes = map(statistics.median, zip(*rows, strict=True))
        print(f"| {name} | {checkout} | {seconds:.2f} | {megabytes:.0f} |")


if __name__ == "__main__":
    main()
