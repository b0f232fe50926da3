"""Models of Python functions: their tokens, the check of their losses, and their faults."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from txl_lightning.data.vocabulary import Vocabulary, characters_and_unknown
from txl_lightning.errors import OptionError, UserError
from txl_lightning.recl.check import checked
from txl_lightning.recl.models import Member, load_function, with_vocabulary
from txl_lightning.recl.text import whole_characters

TEXT = b"abcdefghijkl" * 40


class Scored:
    """A model whose losses a function computes from tokens and targets."""

    def __init__(self, losses: Any, **attributes: Any) -> None:
        self.losses = losses
        vars(self).update(attributes)

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: Any = None) -> Any:
        return self.losses(tokens_BT, targets_BT)


def right(tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, None]:
    return tokens_BT[:, -targets_BT.shape[1] :] / 100, None


def by_length(tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, None]:
    """Return losses that depend on the length of the window."""
    return torch.full(targets_BT.shape, float(tokens_BT.shape[1])), None


def looking(tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, None]:
    """Return losses that depend on tokens 30 places later."""
    later_BT = nn.functional.pad(tokens_BT[:, 30:] / 100, (0, min(30, tokens_BT.shape[1])))
    losses_BT = tokens_BT / 100 + later_BT
    return losses_BT[:, -targets_BT.shape[1] :], None


def failing(tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, None]:
    raise ValueError("no\nsuch table. More.")


def load(model: Any, monkeypatch: pytest.MonkeyPatch) -> Member:
    monkeypatch.setattr(sys.modules[__name__], "make", lambda: model, raising=False)
    member = load_function(f"py:{__name__}.make", "name")
    return checked(member, member.tokenize(TEXT), [8, 16, 64])


def test_a_function_that_keeps_to_the_interface_reads_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = load(Scored(right), monkeypatch)
    text = member.tokenize("aé".encode())
    assert text.tokens.tolist() == [97, 0xC3, 0xA9]
    assert text.level == "byte"
    assert text.spell(0, 3) == ["a", "", "é"]
    assert member.reader.one_pass
    assert load(Scored(right, limit=9), monkeypatch).reader.limit == 9


def test_one_pass_is_not_used_where_it_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    member = load(Scored(by_length), monkeypatch)
    assert not member.reader.one_pass
    assert member.findings["one_pass_difference"] == 56
    assert not load(Scored(right, one_pass=False), monkeypatch).reader.one_pass


FAULTS: list[tuple[Any, str]] = [
    (Scored(looking), "must be a causal language model: losses of Scored depend on later tokens"),
    (Scored(failing), r"cannot read \d+ tokens \(no such table\)"),
    (
        Scored(lambda tokens, targets: (tokens[:, 1:] / 10, None)),
        r"score must return .* \[2, 8\] for such targets",
    ),
    (
        Scored(lambda tokens, targets: targets.float()),
        "score must return a tensor of losses of shape",
    ),
    (Scored, "must return a model with the method score, not type"),
    (
        Scored(right, encode=lambda text: ([1] * 3, [len(text) + 2, -1, -1])),
        "encode must return tokens and their",
    ),
    (Scored(right, encode=lambda text: ([1], [1])), "encode must return tokens and their sizes"),
]


@pytest.mark.parametrize(("model", "words"), FAULTS)
def test_a_fault_of_a_model_is_named(
    model: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match=rf"models=py:{__name__}\.make: {words}"):
        load(model, monkeypatch)


def raises() -> None:
    raise FileNotFoundError("no weights.pt\nhere")


NO_FUNCTIONS = [
    ("module", r"must be py:module\.function"),
    ("no_such_module.function", r"must be a function .*No module named"),
    (f"{__name__}.nothing", "must be a function .*has no attribute 'nothing'"),
    (f"{__name__}.raises", r"must be a function .* that returns a model \(no weights.pt here\)"),
]


@pytest.mark.parametrize(("name", "words"), NO_FUNCTIONS)
def test_what_is_no_function_is_named(name: str, words: str) -> None:
    with pytest.raises(OptionError, match=f"models=py:{name}: {words}") as caught:
        load_function(f"py:{name}", "name")
    assert "\n" not in str(caught.value)


def test_the_tokens_of_a_run_have_the_bytes_of_its_vocabulary() -> None:
    content = "aéa\n".encode()
    by_bytes = with_vocabulary(Vocabulary("byte"), content)
    by_characters = with_vocabulary(characters_and_unknown(["aé\n".encode()]), content)
    assert by_bytes.starts is not None
    assert by_bytes.starts.tolist() == [0, 1, 2, 3, 4]
    assert by_characters.starts is not None
    assert by_characters.starts.tolist() == [0, 1, 3, 4]
    assert by_characters.spell(1, 3) == ["é", "a"]
    assert not by_bytes.has_tokens_of(by_characters)
    words = with_vocabulary(Vocabulary("word", ("<eos>", "a")), b"a a\n")
    assert words.starts is None
    sentences = with_vocabulary(Vocabulary("word", ("<S>", "<UNK>", "a")), b"a\na a\n", closed=True)
    assert sentences.tokens.tolist() == [0, 2, 0, 0, 2, 2, 0]
    with pytest.raises(UserError, match="'b' is not among"):
        with_vocabulary(characters_and_unknown([b"a"]), b"b")


def test_a_character_cut_at_either_end_is_left_out() -> None:
    content = "€a😀".encode()
    assert whole_characters(content) == "€a😀"
    assert whole_characters(content[1:]) == "a😀"
    assert whole_characters(content[2:-1]) == "a"
    with pytest.raises(UserError, match=r"is not UTF-8 text \(character 3\)"):
        whole_characters(b"abc\xffabc")


def test_documents_begin_where_the_token_before_a_position_is() -> None:
    text = with_vocabulary(Vocabulary("byte"), b"abcdef")
    positions = np.array([1, 3, 4, 5])
    assert text.document_begins(positions).tolist() == [0, 0, 0, 0]
