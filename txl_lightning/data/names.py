"""Names of token ids, from the vocabularies that tokenizers and toolkits write."""

from __future__ import annotations

import ast
import base64
import json
import re
from pathlib import Path

from txl_lightning.errors import OptionError
from txl_lightning.files import not_special

FIRST_OF_FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")  # its dict.txt has only what comes after


def names_of_ids(file: str) -> dict[int, str]:
    """Return the names of ids in a file: one in each line, or in one of the formats of vocabularies.

    These are `vocab.json`, `tokenizer.json`, SentencePiece's `.vocab`, `.tiktoken`, fairseq's `dict.txt`, RWKV's list
    and OpenFST's `words.txt`, each known by its contents.

    Raises:
        OptionError: it cannot be read.
    """
    try:
        path = not_special(file)
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        names = _of_json(text) if path.suffix == ".json" else _of_lines(text.removesuffix("\n"), path)
    except (OSError, ValueError, AttributeError, TypeError, SyntaxError, LookupError) as error:
        allowed = f"must have a name in each line, or be a vocabulary such as vocab.json ({error})"
        raise OptionError("data.names", file, allowed) from error
    return names


def _of_json(text: str) -> dict[int, str]:
    content = json.loads(text)
    if isinstance(content, dict) and isinstance(content.get("model"), dict):  # tokenizer.json; Unigram's has pairs
        vocabulary = content["model"]["vocab"]
        content = vocabulary if isinstance(vocabulary, dict) else {token: n for n, (token, _) in enumerate(vocabulary)}
        content |= {token["content"]: token["id"] for token in json.loads(text).get("added_tokens", ())}
    if isinstance(content, list):
        content = {name: number for number, name in enumerate(content)}
    if not all(isinstance(number, int) for number in content.values()):
        raise ValueError("its values are no ids")
    return {number: str(name) for name, number in content.items()}


def _of_lines(text: str, path: Path) -> dict[int, str]:
    if path.suffix == ".vocab":  # SentencePiece; a piece may be a line break
        return dict(enumerate(re.findall(r"(.*?)\t-?(?:[\d.]+(?:e[+-]?\d+)?|inf)(?:\n|\Z)", text, re.DOTALL)))
    lines = [line for line in text.split("\n") if line]

    def all_match(pattern: str) -> list[re.Match[str]]:
        found = [re.fullmatch(pattern, line) for line in lines]
        return [match for match in found if match] if all(found) else []

    if found := all_match(r"(\d+) (b?(['\"]).*\3) \d+"):  # RWKV
        return {int(match[1]): _text(ast.literal_eval(match[2])) for match in found}
    found = all_match(r"(.+)[ \t](\d+)(?: #fairseq:overwrite)?")
    if found and path.name.startswith("dict"):  # fairseq, with counts
        return dict(enumerate(dict.fromkeys((*FIRST_OF_FAIRSEQ, *(match[1] for match in found)))))
    numbered = {int(match[2]): match[1].rstrip(" \t") or " " for match in found}
    if found and path.suffix in (".tiktoken", ".model"):
        return {number: _text(base64.b64decode(name)) for number, name in numbered.items()}
    if len({*numbered.values()}) == len(found) > 0 and (
        numbered.get(0) == "<eps>" or {*numbered} == {*range(len(found))}
    ):
        return numbered  # OpenFST
    return dict(enumerate(text.split("\n")))


def _text(content: str | bytes) -> str:
    return content if isinstance(content, str) else content.decode("utf-8", errors="backslashreplace")
