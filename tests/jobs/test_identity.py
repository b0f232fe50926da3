"""Identity of a job: its options and the code that it computes with."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from txl_lightning.jobs import folder as module
from txl_lightning.jobs.folder import code_of, difference, identity, statements


def test_options_that_only_say_how_a_job_runs_are_not_its_identity() -> None:
    config = OmegaConf.create(
        {
            "seed": 1,
            "n": "${seed}",
            "logger": {"name": "csv"},
            "data": {"root": "/a", "name": "b"},
            "trainer": {"num_threads": 2},
        }
    )
    assert identity(config) == {"seed": 1, "n": 1, "data.name": "b", "trainer.num_threads": 2}


def test_the_first_option_that_differs_is_named() -> None:
    assert difference({"seed": 1, "n": 2}, {"seed": 1, "n": 3}) == "n=3, not 2"
    assert difference({"seed": 1}, {"seed": 1, "n": 3}) == "n=3, not None"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose command uses a module, a folder and a table."""
    sources = {
        "command": "from txl_sample.used import f\nfrom txl_sample import kinds, report\n",
        "used": "def f(x):\n    import txl_sample.late\n    return x + 1\n",
        "report": "import txl_sample.shown\n",
        **dict.fromkeys(("__init__", "late", "kinds/__init__", "kinds/one", "shown", "other"), "A = 1\n"),
    }
    (tmp_path / "txl_sample/kinds").mkdir(parents=True)
    for name, source in sources.items():
        (tmp_path / f"txl_sample/{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "txl_sample"


@pytest.mark.parametrize(
    ("file", "more", "changes"),
    [
        ("command.py", "X = 1\n", True),
        ("used.py", "X = 1\n", True),
        ("used.py", "# why\n", False),
        ("late.py", "X = 1\n", True),  # imported in a function
        ("kinds/two.py", "X = 1\n", True),  # of a folder that is imported as a whole
        ("shown.py", "X = 1\n", False),
        ("other.py", "X = 1\n", False),
    ],
)
def test_the_code_of_a_command_is_what_it_imports(package: Path, file: str, more: str, changes: bool) -> None:
    def code() -> str:
        code_of.cache_clear()
        module._statements_and_imports.cache_clear()
        return code_of("txl_sample.command")

    before = code()
    with (package / file).open("a") as added:
        added.write(more)
    assert (code() != before) == changes


def test_comments_and_docstrings_are_no_other_code() -> None:
    one = 'def f(x):\n    """Doc."""\n    return x + 1  # why\n'
    assert statements(one) == statements('"""Module."""\ndef f(x):\n\n    return (x + 1)\n')
    assert statements(one) != statements("def f(x):\n    return x + 2\n")
