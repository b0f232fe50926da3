"""A user's files: variants, corpora, encodings, formats and measurements without a change of the package."""

import json
import os
import pickle
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import txl_lightning.data
from tests.alone import printed
from tests.docs.pages import ROOT
from tests.fixtures import Patch
from tests.in_process import refusal, success
from tests.own_guests import forget_guests, no_guests  # noqa: F401 - a fixture
from tests.training.small_run import TEXT, TINY
from txl_lightning.application import compose
from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.corpus import load_corpus
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.models import architecture, make_model, require_room
from txl_lightning.evaluation.trained import load_trained
from txl_lightning.model.transformer_xl import VARIANTS, TransformerXL
from txl_lightning.registry import load_guests

pytestmark = pytest.mark.usefixtures("no_guests")
EXAMPLES = {name: str(ROOT / f"examples/{name}.py") for name in ("layer_scale", "brackets", "t5")}
SMALL = (
    *(word for word in TINY if not word.startswith(("data=", "data.level"))),
    "trainer.max_steps=3",
)
NOT_SET = "one that a file in the variable TXL_GUESTS registers (not set)"
OF_LAYER_SCALE = """
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

@dataclass(kw_only=True)
class Required(LayerScale.config_class):
    width: int

@register_variant("fourth")
class Fourth(LayerScale):
    config_class = Required
"""


def use(monkeypatch: Patch, *files: str | Path) -> None:
    """Set the variable as for a new process."""
    monkeypatch.setenv("TXL_GUESTS", ",".join(map(str, files)))
    forget_guests()


@pytest.mark.slow
def test_a_variant_of_a_file_trains_resumes_and_is_measured(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    use(monkeypatch, EXAMPLES["layer_scale"])
    (tmp_path / "text.txt").write_text(TEXT)
    words = (
        "train",
        "variant=layer_scale",
        "variant.start=0.5",
        "data=file",
        "data.path=text.txt",
        "data.level=char",
    )
    small = (*words, *SMALL, "data.cache_dir=cache", "hydra.run.dir=run")
    success(*small, directory=tmp_path)
    success(*small, "resume=auto", "trainer.max_steps=5", directory=tmp_path)
    assert json.loads((tmp_path / "run/metrics.json").read_text())["steps"] == 5
    best = "checkpoint=run/checkpoints/best.ckpt"
    trained: Any = load_trained(tmp_path / "run/checkpoints/best.ckpt").model
    assert trained.layers[0].attention_scale.mean().item() == pytest.approx(0.5, abs=0.1)
    assert (
        "variant layer_scale"
        in success("evaluate", best, "splits=[test]", "hydra.run.dir=e", directory=tmp_path).out
    )
    success("generate", best, "prompt=line", "n_tokens=3", "hydra.run.dir=g", directory=tmp_path)
    assert "layer_scale" in success("train", "--help", directory=tmp_path).out
    wrong = refusal(*words, "variant.start=soon", *SMALL, directory=tmp_path)
    assert wrong == "txl train: variant.start=soon: must be of type float\n"


def test_without_the_variable_a_line_says_that_it_is_not_set(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    use(monkeypatch, *EXAMPLES.values())
    words = (
        "variant=layer_scale",
        "data=brackets",
        "data.depth=3",
        "data.n_tokens=3000",
        "data.cache_dir=cache",
    )
    success("train", *words, *SMALL, "hydra.run.dir=run", directory=tmp_path)
    monkeypatch.delenv("TXL_GUESTS")
    forget_guests()
    for group, name in (("variant", "layer_scale"), ("data", "brackets"), ("encoding", "t5")):
        refused = refusal("train", f"{group}={name}", directory=tmp_path)
        assert f"Could not find '{group}/{name}'" in refused
        assert len(refused.splitlines()) == 1
    refused = refusal("evaluate", "checkpoint=run/checkpoints/best.ckpt", directory=tmp_path)
    assert re.fullmatch(
        rf"txl evaluate: checkpoint=run/checkpoints/best.ckpt: .*{re.escape(NOT_SET)}\n", refused
    )


@pytest.mark.slow
def test_a_variant_of_a_variant_has_options_of_both(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "second.py").write_text(OF_LAYER_SCALE)
    use(monkeypatch, EXAMPLES["layer_scale"], tmp_path / "second.py")
    config = compose("variant=second", "variant.start=0.5")
    own = {"power": 2, "parity": "odd", "rate": None, "sizes": [1], "ends": []}
    assert config.variant == {"name": "second", "start": 0.5, **own}
    assert type(make_model(config, 20)).__name__ == "Second"
    given = compose(
        "variant=second",
        "variant.parity=even",
        "variant.rate=1",
        "variant.sizes=[3]",
        "variant.ends=[4,5]",
    )
    assert make_model(given, 20).config.rate == 1  # type: ignore[union-attr]
    for word, kind in {"parity=3": "str", "power=no": "int", "ends=2": "tuple"}.items():
        with pytest.raises(OptionError, match=rf"^variant\.{word}: must be of type {kind}$"):
            make_model(compose("variant=second", f"variant.{word}"), 20)
    require_room(architecture(compose("variant=fourth", "variant.width=3"), 20))
    without = refusal("train", "variant=fourth", directory=tmp_path)
    assert without == "txl train: variant.width: must be given (variant.width=…)\n"
    assert (
        type(make_model(compose("variant=layer_scale"), 20)).__name__ == "LayerScaleTransformerXL"
    )

    class Child(VARIANTS.named("memory_tokens")):  # type: ignore[misc]
        cannot = {"attention lengths": "it is a test"}  # noqa: RUF012

    assert Child.cannot["attention lengths"] == "it is a test"
    assert "generation" in Child.cannot


def test_a_typo_in_what_a_variant_cannot_do_is_an_error() -> None:
    with pytest.raises(
        OptionError, match=r"^cannot=cashed inference: must be one of cached inference, one-p"
    ):

        class Typo(TransformerXL):
            cannot = {"cashed inference": "it is a test"}  # type: ignore[dict-item] # noqa: RUF012


@pytest.mark.slow
def test_a_corpus_of_a_file_has_splits_level_and_options(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    use(monkeypatch, EXAMPLES["brackets"], EXAMPLES["t5"])
    words = (
        "train",
        "data=brackets",
        "encoding=t5",
        "data.n_tokens=4000",
        "data.cache_dir=cache",
        *SMALL,
    )
    success(*words, "data.depth=3", "hydra.run.dir=run", "trainer.devices=2", directory=tmp_path)
    corpus = json.loads((tmp_path / "run/metrics.json").read_text())["corpus"]
    assert (corpus["name"], corpus["level"]) == ("brackets, depth 3", "char")
    success(
        "evaluate", "checkpoint=run/checkpoints/best.ckpt", "hydra.run.dir=e", directory=tmp_path
    )
    assert json.loads((tmp_path / "e/evaluation.json").read_text())["test"]["tokens"] == 198
    for word, error in {
        "data.depth=x": "Value 'x' of type 'str' could not be converted to Integer",
        "data.deph=3": "data.deph: no such option, did you mean data.depth",
        "data.level=word": "data.level=word: must be char or byte for data=brackets",
    }.items():
        assert error in refusal(*words, word, "hydra.run.dir=wrong", directory=tmp_path)


@pytest.mark.slow
def test_jobs_of_a_multirun_import_the_files(tmp_path: Path, monkeypatch: Patch) -> None:
    use(monkeypatch, EXAMPLES["brackets"], EXAMPLES["layer_scale"])
    words = (
        "data=brackets",
        "data.n_tokens=3000",
        "data.cache_dir=cache",
        "variant=none,layer_scale",
        *SMALL,
    )
    success("train", "-m", *words, "hydra.sweep.dir=sweep", directory=tmp_path)
    jobs = json.loads((tmp_path / "sweep/multirun.json").read_text())["jobs"]
    states = {job["overrides"]["variant"]: job["state"] for job in jobs}
    assert states == {"layer_scale": "finished", "none": "finished"}


def test_a_corpus_of_the_package_is_a_file_that_nothing_lists(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """Beside it only `conf/data/letters.yaml`."""
    (tmp_path / "letters.py").write_text(
        "from txl_lightning.data.sources import Source, cut_file, open_vocabulary, register_corpus\n"
        "@register_corpus('letters', 'char')\n"
        "def letters(config):\n"
        f"    return Source('letters', cut_file(__import__('pathlib').Path({__file__!r})), open_vocabulary(config))\n"
    )
    monkeypatch.setattr(
        txl_lightning.data, "__path__", [*txl_lightning.data.__path__, str(tmp_path)]
    )
    config = DataConfig("letters", "char", cache_dir=str(tmp_path / "cache"))
    assert load_corpus(config).name == "letters"


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
            "recall: is the name of another data, txl_lightn",
        ),
        (
            "@register_variant('gru_residual')\nclass V(TransformerXL): ...",
            "gru_residual: is .* another variant, txl_",
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
    with pytest.raises(
        OptionError, match=f"taken.py: cannot be imported: OptionError: name={taken}"
    ):
        load_guests()


def test_a_config_of_a_file_is_unpickled_elsewhere(tmp_path: Path, monkeypatch: Patch) -> None:
    """As a job on SLURM does, before it imports anything of the package."""
    use(monkeypatch, EXAMPLES["brackets"])
    data = compose("data=brackets", "data.depth=3").data
    (tmp_path / "data").write_bytes(pickle.dumps(OmegaConf.structured(data)))
    code = "import pickle; print(pickle.load(open('data', 'rb')).depth)"
    assert printed("-c", code, directory=tmp_path) == "3\n"


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        (
            "other.py, broken.py",
            "broken.py: cannot be imported: ModuleNotFoundError: No module named 'no_such_libr",
        ),
        (
            "missing.py",
            "missing.py: cannot be imported: FileNotFoundError: [Errno 2] No such file or directory: ",
        ),
        ("no_such_module", "no_such_module: cannot be imported: ModuleNotFoundError: "),
    ],
)
def test_what_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: Patch, variable: str, line: str
) -> None:
    (tmp_path / "broken.py").write_text("import no_such_library\n")
    (tmp_path / "other.py").touch()
    use(monkeypatch, variable)
    assert refusal("train", directory=tmp_path).startswith(f"txl: TXL_GUESTS={line}")


@pytest.mark.slow
def test_the_examples_run_with_an_installed_package(tmp_path: Path) -> None:
    """The package's files where the wheel has them, and no checkout; `make dist` does the same with the wheel."""
    site, project = tmp_path / "site", (ROOT / "pyproject.toml").read_text()
    assert 'packages = ["txl_lightning", "hydra_plugins"]' in project
    assert 'conf = "txl_lightning/conf"' in project
    for source, target in {
        "txl_lightning": "",
        "hydra_plugins": "",
        "conf": "txl_lightning/",
    }.items():
        shutil.copytree(
            ROOT / source, site / target / source, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(ROOT / "tests/wheel.py", site)
    (tmp_path / "txl").write_text(
        f"#!{sys.executable}\nfrom txl_lightning.cli import main\nmain()\n"
    )
    (tmp_path / "txl").chmod(0o755)
    variables = {"PYTHONPATH": str(site), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    code = f"import wheel; assert wheel.txl_lightning.__file__.startswith({str(site)!r}); wheel.use_guests()"
    printed("-c", code, directory=tmp_path, **variables)


def test_nothing_in_the_core_names_a_guest() -> None:
    files = sorted((ROOT / "txl_lightning/variants").glob("[!_]*.py"))
    classes = re.findall(r"^class (\w+)", "".join(path.read_text() for path in files), re.MULTILINE)
    names = re.compile(rf"\b({'|'.join([*(path.stem for path in files), *classes])})\b")
    for path in [*(ROOT / "txl_lightning").rglob("*.py"), *(ROOT / "hydra_plugins").rglob("*.py")]:
        text = path.read_text()
        if path.parent.name != "variants":
            older = re.sub(r'"(model|memory)\.\w+"', "", text)  # options of earlier versions
            assert not (found := names.search(older)), f"{path}: {found and found[0]}"
