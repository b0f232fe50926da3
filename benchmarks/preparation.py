"""Measure what preparing a text costs: whole processes' CPU seconds and memory, in turns.

    python -m benchmarks.preparation --text FILE [--rounds 5] [--only CASES] [--against CHECKOUT] [--original FOLDER]

Cases: plain text at level char, the same text as JSON lines (cold, and again from the cache), words, documents marked
at level byte; with three kinds of tokenizers (8,192 tokens) the text, its short and long records; a million records,
one line of DNA on which subwords are trained, one document with 100 MB (if FILE has 10 MB); `tokenizers` alone and
`datasets.map` with the same merges, and the paper's `data_utils.py` with words. FILE is UTF-8 text. The imports that a
case needs count too; the row `imports` has their cost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
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


EXPRESSION = """
import json
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
tokenizer = Tokenizer.from_file(r"{tokenizer}")
words = r" ?\\p{{L}}+| ?\\p{{N}}{{1,3}}| ?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
by_words = pre_tokenizers.Split(Regex(words), "isolated")
as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([by_words, as_bytes])
tokenizer.save(r"{expression}")
made = Tokenizer(models.Unigram())
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.UnigramTrainer(vocab_size=8192, initial_alphabet=alphabet, show_progress=False)
with open(r"{text}", encoding="utf-8", newline="") as file:
    made.train_from_iterator(file.read(1_000_000).splitlines(keepends=True), trainer)
made.save(r"{unigram}")
"""
SHORT, LONG = 62, 100_000  # characters in a record
MILLION = 98
LETTERS_OF_DNA = 4_600_000


def write_texts(text: Path, folder: Path) -> dict[str, Path]:
    """Write the text as JSON lines in several lengths, one line of DNA, a million records, and the text ten times."""
    content = text.read_text(encoding="utf-8")
    paths = {"text": text}
    for name, length in (("short records", SHORT), ("long records", LONG)):
        paths[name] = folder / f"{length}.jsonl"
        with paths[name].open("w", encoding="utf-8") as file:
            for at in range(0, len(content), length):
                file.write(json.dumps({"text": content[at : at + length]}) + "\n")
    paths["lines"] = folder / "text.jsonl"
    with paths["lines"].open("w", encoding="utf-8") as file:
        for line in content.splitlines(keepends=True):
            if line.strip():
                file.write(json.dumps({"text": line}) + "\n")
    paths["million"] = folder / "million.jsonl"
    with paths["million"].open("w", encoding="utf-8") as file:
        for number in range(1_000_000):
            at = number * MILLION % (len(content) - MILLION)
            file.write(json.dumps({"text": content[at : at + MILLION]}) + "\n")
    paths["dna"] = folder / "dna.txt"
    draw = random.Random(1)
    with paths["dna"].open("w") as file:
        for _ in range(LETTERS_OF_DNA // 1_000):
            file.write("".join(draw.choices("acgt", k=1_000)))
    paths["large"] = folder / "large.txt"
    with paths["large"].open("w", encoding="utf-8") as file:
        for _ in range(10):
            file.write(content)
    return paths


def write_tokenizers(text: Path, folder: Path) -> dict[str, Path]:
    """Write three tokenizers with 8,192 tokens: like GPT-2's, with an expression like cl100k's, and Unigram."""
    paths = {"BPE": folder / "tokenizer.json"}
    paths["expression"] = folder / "expression.json"
    paths["unigram"] = folder / "unigram.json"
    training = TRAIN.format(text=text, tokenizer=paths["BPE"])
    others = EXPRESSION.format(
        tokenizer=paths["BPE"], text=text, expression=paths["expression"], unigram=paths["unigram"]
    )
    subprocess.run([sys.executable, "-c", training], check=True)
    subprocess.run([sys.executable, "-c", others], check=True)
    return paths


def cases(text: Path, folder: Path, original: str | None) -> dict[str, str]:
    """Return every case's code by name; writes the texts and tokenizers that it needs.

    Args:
        text: UTF-8 text.
        folder: folder for these files, and for what the cases write.
        original: folder with the paper's PyTorch code; None leaves its case out.
    """
    paths = write_texts(text, folder)
    tokenizers = write_tokenizers(text, folder)

    def load(name: str, options: str, marked: bool = False) -> str:
        return LOAD.format(path=paths[name], cache="{cache}", options=options, marked=marked)

    found = {
        "imports": "import txl_lightning.data.corpus",
        "text, char": load("text", 'level="char"'),
        "JSON lines, char": load("lines", 'level="char"'),
        "JSON lines, char, again": load("lines", 'level="char"'),
        "text, words": load("text", 'level="word"'),
        "documents, byte": load("text", 'level="byte", document_start="^$"', True),
    }
    for kind, path in tokenizers.items():
        for name in ("text", "short records", "long records"):
            found[f"{name}, {kind}"] = load(name, f'level="bpe", tokenizer=r"{path}"')
    large = f'level="bpe", tokenizer=r"{tokenizers["expression"]}"'
    found["a million records, char"] = load("million", 'level="char"')
    found["DNA, BPE trained"] = load("dna", 'level="bpe"')
    found["100 MB, one document, expression"] = load("large", large)
    found["tokenizers"] = TOKENIZERS.format(tokenizer=tokenizers["BPE"], text=text)
    found["datasets.map"] = DATASETS.format(
        tokenizer=tokenizers["BPE"], json=paths["lines"], cache="{cache}"
    )
    if original is not None:
        found["data_utils.py, words"] = ORIGINAL.format(original=original, text=text)
    return found


def measured(code: str, checkout: Path) -> tuple[float, float]:
    """Return CPU seconds and peak MB for a process that runs the code in a checkout."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=checkout, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"a case ended with status {status}:\n{code}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def main(words: Sequence[str] | None = None) -> None:
    """Print a table with medians; every round runs all cases once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--original")
    options = parser.parse_args(words)
    checkouts = {"this": Path.cwd()} | (
        {} if options.against is None else {options.against.name: options.against}
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        chosen = cases(options.text.absolute(), folder, options.original)
        if options.only:
            chosen = {
                name: code for name, code in chosen.items() if name in options.only.split(";")
            }
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for turn in range(options.rounds):
            for name, code in chosen.items():
                for checkout, path in checkouts.items():
                    if path == Path.cwd() or "txl_lightning" in code:
                        cache = (
                            folder
                            / f"{turn}.{checkout}.{name.removesuffix(', again')}".replace(" ", "_")
                        )
                        row = measured(code.replace("{cache}", str(cache)), path)
                        found.setdefault((name, checkout), []).append(row)
    print("| case | checkout | CPU s | MB |\n| --- | --- | ---: | ---: |")
    for (name, checkout), rows in found.items():
        seconds, megabytes = map(statistics.median, zip(*rows, strict=True))
        print(f"| {name} | {checkout} | {seconds:.2f} | {megabytes:.0f} |")


if __name__ == "__main__":
    main()
