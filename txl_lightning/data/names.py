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
        text = path.read_text(encoding="utf-8")
        return _of_json(text) if path.suffix == ".json" else _of_lines(text.removesuffix("\n").split("\n"), path)
    except (OSError, ValueError, AttributeError, TypeError, SyntaxError, LookupError) as error:
        allowed = f"must have a name in each line, or be a vocabulary such as vocab.json ({error})"
        raise OptionError("data.names", file, allowed) from error


def _of_json(text: str) -> dict[int, str]:
    content = json.loads(text)
    if "model" in content:  # tokenizer.json; that of Unigram has a list
        vocabulary = content["model"]["vocab"]
        listed = (
            {token[0]: number for number, token in enumerate(vocabulary)}
            if isinstance(vocabulary, list)
            else vocabulary
        )
        content = {**listed, **{token["content"]: token["id"] for token in content["added_tokens"]}}
    return {int(number): str(name) for name, number in content.items()}


def _of_lines(lines: list[str], path: Path) -> dict[int, str]:
    def all_match(pattern: str) -> list[re.Match[str]]:
        found = [re.fullmatch(pattern, line) for line in lines]
        return [match for match in found if match] if all(found) else []

    if found := all_match(r"(\d+) (b?(['\"]).*\3) \d+"):  # RWKV
        return {int(match[1]): _text(ast.literal_eval(match[2])) for match in found}
    if found := all_match(r"(.*)\t(-?\d+(?:\.\d+)?(?:e-?\d+)?)"):
        if all(match[2].isdecimal() for match in found) and {int(match[2]) for match in found} == {*range(len(found))}:
            return {int(match[2]): match[1] for match in found}  # OpenFST
        return {number: match[1] for number, match in enumerate(found)}  # SentencePiece, with scores
    found = all_match(r"(\S+) +(\d+)")
    numbered = {int(match[2]): match[1] for match in found}
    if path.suffix == ".tiktoken":
        return {number: _text(base64.b64decode(name)) for number, name in numbered.items()}
    if len({*numbered.values()}) == len(found) > 0 and {*numbered} == {*range(len(found))}:
        return numbered  # OpenFST
    if found and path.name.startswith("dict"):  # fairseq, with counts
        return dict(enumerate((*FIRST_OF_FAIRSEQ, *(match[1] for match in found))))
    return dict(enumerate(lines))


def _text(content: str | bytes) -> str:
    return content if isinstance(content, str) else content.decode("utf-8", errors="backslashreplace")
