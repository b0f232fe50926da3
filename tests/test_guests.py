"""A user's files: variants, corpora, encodings, formats and measurements without a change of the package."""

import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.alone import printed
from tests.docs.pages import ROOT
from tests.fixtures import Patch
from tests.in_process import refusal, success
from tests.own_guests import forget_guests, no_guests  # noqa: F401 - a fixture
from tests.training.small_run import TEXT, TINY
from txl_lightning.application import compose
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.models import make_model
from txl_lightning.evaluation.trained import load_trained
from txl_lightning.model.transformer_xl import VARIANTS, TransformerXL
from txl_lightning.registry import load_guests

pytestmark = pytest.mark.usefixtures("no_guests")
LAYER_SCALE = ROOT / "examples/layer_scale.py"
BRACKETS = ROOT / "examples/brackets.py"
T5 = ROOT / "examples/t5.py"
SMALL = [
    *(word for word in TINY if word not in ("data=file", "data.level=byte")),
    "data.cache_dir=cache",
    "trainer.max_steps=3",
]
BEST = "checkpoint=run/checkpoints/best.ckpt"


def use(monkeypatch: Patch, *files: str | Path) -> None:
    """Set the variable as for a new process."""
    monkeypatch.setenv("TXL_GUESTS", ",".join(str(file) for file in files))
    forget_guests()


@pytest.mark.slow
def test_a_variant_of_a_file_trains_resumes_and_is_measured(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    use(monkeypatch, LAYER_SCALE)
    (tmp_path / "text.txt").write_text(TEXT)
    variant = ["train", "variant=layer_scale", *SMALL]
    words = [*variant, "variant.start=0.5", "data=file", "data.path=text.txt", "data.level=char"]
    success(*words, "hydra.run.dir=run", directory=tmp_path)
    success(*words, "hydra.run.dir=run", "resume=auto", "trainer.max_steps=5", directory=tmp_path)
    assert json.loads((tmp_path / "run/metrics.json").read_text())["steps"] == 5
    trained: Any = load_trained(tmp_path / "run/checkpoints/best.ckpt").model
    assert trained.layers[0].attention_scale.mean().item() == pytest.approx(0.5, abs=0.1)
    success("evaluate", BEST, "splits=[test]", "hydra.run.dir=e", directory=tmp_path)
    assert '"variant": "layer_scale"' in (tmp_path / "e/evaluation.json").read_text()
    success("generate", BEST, "prompt=line", "n_tokens=3", "hydra.run.dir=g", directory=tmp_path)
    assert "layer_scale" in success("train", "--help", directory=tmp_path).out
    wrong = refusal(*variant, "variant.start=soon", directory=tmp_path)
    assert wrong == "txl train: variant.start=soon: must be of type float\n"


def test_without_the_variable_a_line_says_that_it_is_not_set(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    use(monkeypatch, LAYER_SCALE, BRACKETS, T5)
    words = ("variant=layer_scale", "data=brackets", "data.depth=3", "data.n_tokens=3000")
    success("train", *SMALL, *words, "hydra.run.dir=run", directory=tmp_path)
    monkeypatch.delenv("TXL_GUESTS")
    forget_guests()
    for choice in ("variant=layer_scale", "data=brackets", "encoding=t5"):
        refused = refusal("train", choice, directory=tmp_path)
        assert f"Could not find '{choice.replace('=', '/')}'" in refused
    refused = refusal("evaluate", BEST, directory=tmp_path)
    assert refused.startswith(f"txl evaluate: {BEST}: ")
    assert "one that a file in the variable TXL_GUESTS registers (not set)\n" in refused


SECOND = """
from dataclasses import dataclass, field
from typing import Literal
from txl_lightning import register_variant
from txl_lightning.model.transformer_xl import VARIANTS

LayerScale = VARIANTS.named("layer_scale")

@dataclass
class Config(LayerScale.config_class):
    power: int = 2
    parity: Literal["odd", "even"] = "odd"
    rate: float | None = None
    sizes: list[int] = field(default_factory=lambda: [1])
    ends: tuple[int, ...] = ()

@register_variant("second")
class Second(LayerScale):
    config_class = Config
"""


@pytest.mark.slow
def test_a_variant_of_a_variant_has_options_of_both(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "second.py").write_text(SECOND)
    use(monkeypatch, LAYER_SCALE, tmp_path / "second.py")
    assert compose("variant=second", "variant.start=0.5").variant == {
        "name": "second",
        "start": 0.5,
        "power": 2,
        "parity": "odd",
        "rate": None,
        "sizes": [1],
        "ends": [],
    }
    given = ("variant.parity=even", "variant.rate=1", "variant.sizes=[3]", "variant.ends=[4,5]")
    model: Any = make_model(compose("variant=second", *given), 20)
    assert type(model).__name__ == "Second"
    assert model.config.rate == 1
    for word, kind in {"parity=3": "str", "power=no": "int", "ends=2": "tuple"}.items():
        with pytest.raises(OptionError, match=rf"^variant\.{word}: must be of type {kind}$"):
            make_model(compose("variant=second", f"variant.{word}"), 20)


def test_a_variant_adds_to_what_its_parent_cannot_do() -> None:
    class Child(VARIANTS.named("memory_tokens")):  # type: ignore[misc]
        cannot = {"attention lengths": "it is a test"}  # noqa: RUF012

    assert Child.cannot["attention lengths"] == "it is a test"
    assert "generation" in Child.cannot
    with pytest.raises(OptionError, match=r"^cannot=cashed inference: must be one of cached inf"):

        class Typo(TransformerXL):
            cannot = {"cashed inference": "it is a test"}  # type: ignore[dict-item] # noqa: RUF012


@pytest.mark.slow
def test_a_corpus_of_a_file_has_splits_level_and_options(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    use(monkeypatch, BRACKETS, T5)
    words = ["train", *SMALL, "data=brackets", "data.n_tokens=4000", "encoding=t5"]
    ranks = ("data.depth=3", "trainer.devices=2")
    success(*words, *ranks, "hydra.run.dir=run", directory=tmp_path)
    corpus = json.loads((tmp_path / "run/metrics.json").read_text())["corpus"]
    assert corpus["name"] == "brackets, depth 3"
    assert corpus["level"] == "char"
    success("evaluate", BEST, "hydra.run.dir=e", directory=tmp_path)
    assert json.loads((tmp_path / "e/evaluation.json").read_text())["test"]["tokens"] == 198
    wrong = {
        "data.depth=x": "Value 'x' of type 'str' could not be converted to Integer",
        "data.deph=3": "data.deph: no such option, did you mean data.depth",
        "data.level=word": "data.level=word: must be char or byte for data=brackets",
    }
    for word, said in wrong.items():
        assert said in refusal(*words, word, "hydra.run.dir=wrong", directory=tmp_path)


@pytest.mark.slow
def test_jobs_of_a_multirun_import_the_files(tmp_path: Path, monkeypatch: Patch) -> None:
    use(monkeypatch, BRACKETS, LAYER_SCALE)
    words = ("data=brackets", "data.n_tokens=3000", "variant=none,layer_scale")
    success("train", "-m", *SMALL, *words, "hydra.sweep.dir=sweep", directory=tmp_path)
    jobs = json.loads((tmp_path / "sweep/multirun.json").read_text())["jobs"]
    assert [job["state"] for job in jobs] == ["finished", "finished"]


LETTERS = f"""
from pathlib import Path
from txl_lightning.data.sources import Source, cut_file, open_vocabulary, register_corpus

@register_corpus("letters", "char")
def letters(config):
    return Source("letters", cut_file(Path({__file__!r})), open_vocabulary(config))
"""


WITH_KIND = """
from dataclasses import dataclass
@dataclass
class C(TransformerXLConfig):
    kind: int = 1
@register_variant('v')
class V(TransformerXL):
    config_class = C
"""


@pytest.mark.parametrize(
    ("code", "taken"),
    [
        (
            "@register_corpus('recall', 'char')\ndef f(_): ...",
            "recall: is the name of another data, txl_lightning",
        ),
        (
            "@register_variant('gru_residual')\nclass V(TransformerXL): ...",
            "gru_residual: is the name of another variant, txl_",
        ),
        (
            "@register_encoding('rope')\nclass E(Encoding): ...",
            "rope: is the name of another encoding, txl_lightning",
        ),
        (WITH_KIND, "kind: is the name of another option or property of TransformerXLConfig"),
    ],
)
def test_a_name_of_the_package_is_taken(
    tmp_path: Path, monkeypatch: Patch, code: str, taken: str
) -> None:
    imports = (
        "from txl_lightning import *\nfrom txl_lightning.data.sources import register_corpus\n"
    )
    (tmp_path / "taken.py").write_text(imports + code)
    use(monkeypatch, tmp_path / "taken.py")
    with pytest.raises(OptionError, match=f"taken.py: cannot be imported: .*: name={taken}"):
        load_guests()


def test_a_config_of_a_file_is_unpickled_elsewhere(tmp_path: Path, monkeypatch: Patch) -> None:
    """As a job on SLURM does, before it imports anything of the package."""
    use(monkeypatch, BRACKETS)
    data = compose("data=brackets", "data.depth=3").data
    (tmp_path / "data").write_bytes(pickle.dumps(OmegaConf.structured(data)))
    code = "import pickle; print(pickle.load(open('data', 'rb')).depth)"
    assert printed("-c", code, directory=tmp_path) == "3\n"


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (
            "other.py, broken.py",
            "broken.py: cannot be imported: ModuleNotFoundError: No module named 'no_such_library",
        ),
        (
            "missing.py",
            "missing.py: cannot be imported: FileNotFoundError: [Errno 2] No such file",
        ),
        ("no_such_module", "no_such_module: cannot be imported: ModuleNotFoundError: "),
    ],
)
def test_what_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: Patch, files: str, line: str
) -> None:
    (tmp_path / "broken.py").write_text("import no_such_library\n")
    (tmp_path / "other.py").touch()
    use(monkeypatch, files)
    assert refusal("train", directory=tmp_path).startswith(f"txl: TXL_GUESTS={line}")


@pytest.mark.slow
def test_the_examples_run_with_an_installed_package(tmp_path: Path) -> None:
    """The package's files where the wheel has them, and no checkout; `make dist` does the same with the wheel."""
    site = tmp_path / "site"
    without_caches = shutil.ignore_patterns("__pycache__")
    folders = {
        "txl_lightning": site / "txl_lightning",
        "hydra_plugins": site / "hydra_plugins",
        "conf": site / "txl_lightning/conf",
        "examples": tmp_path / "examples",
    }
    for source, target in folders.items():
        shutil.copytree(ROOT / source, target, ignore=without_caches)
    shutil.copy(ROOT / "tests/wheel.py", site)
    program = tmp_path / "txl"
    program.write_text(f"#!{sys.executable}\nfrom txl_lightning.cli import main\nmain()\n")
    program.chmod(0o755)
    variables = {"PYTHONPATH": str(site), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    code = f"import wheel; assert wheel.PACKAGE.startswith({str(site)!r}); wheel.use_guests()"
    printed("-c", code, directory=tmp_path, **variables)
