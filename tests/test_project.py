"""Files about the project: citation, version and dependencies."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.data.helpers import files
from tests.docs.pages import ROOT
from txl_lightning import __version__


def read(path: str | Path) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_citation_has_the_version_and_date_of_the_changelog() -> None:
    citation = read("CITATION.cff")
    released = re.findall(r"^## \[(\d\S+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == (citation["version"], str(citation["date-released"]))
    assert citation["version"] == __version__
    assert citation["references"][0]["title"] in (ROOT / "README.md").read_text()
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_the_badges_tell_what_ci_tests_and_the_licence() -> None:
    pythons = read(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    readme = (ROOT / "README.md").read_text()
    assert f"python-{pythons[0]}_to_{pythons[-1]}-" in readme
    assert f"licence-{read('CITATION.cff')['license']}-" in readme


KNOWN_HOLES = {  # versions with malicious code or known vulnerabilities
    "lightning": ["2.6.2", "2.6.3", "2.6.5"],  # GHSA-w37p-236h-pfx3, CVE-2026-58659
    "hydra-core": ["1.3.2", "1.3.6"],  # targets of instantiate() that run code
    "torch": ["2.5.1", "2.9.1"],  # CVE-2025-32434 and CVE-2026-24747: torch.load with weights_only
}


def dependencies() -> dict[str, Requirement]:
    text = (ROOT / "pyproject.toml").read_text()
    (listed,) = re.findall(r"^dependencies = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    return {(found := Requirement(text)).name: found for text in re.findall(r'^    "(.*?)"', listed, re.MULTILINE)}


def test_versions_with_known_holes_are_not_allowed() -> None:
    assert len(dependencies()) >= 12
    allowed = [(name, v) for name, of in KNOWN_HOLES.items() for v in of if v in dependencies()[name].specifier]
    assert allowed == []


STUB = """#!/bin/sh
echo "$0 $*" >> log
case "$0 $*" in
    *"venv --clear .venv") mkdir -p .venv/bin && cp python .venv/bin/python && touch .venv/pip;;
    *"-m pip --version") test -e .venv/pip;;
esac"""


def test_make_makes_a_half_made_environment_again(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    files(tmp_path, {"constraints.txt": "torch==0\n", "pyproject.toml": "", ".venv/bin/python": STUB, "python": STUB})
    for name in (".venv/bin/python", "python"):  # the first stopped before it had pip
        (tmp_path / name).chmod(0o755)
    env = {name: value for name, value in os.environ.items() if "MAKE" not in name}  # not of a make that runs the tests
    for _ in range(2):
        (tmp_path / ".venv/.ready").unlink(missing_ok=True)
        command = ["make", ".venv/.ready", "PYTHON=./python"]
        subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    calls = (tmp_path / "log").read_text()
    assert (calls.count("venv --clear"), calls.count("--editable .[dev]")) == (1, 2)


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_python_has_one_pinned_version_of_each_dependency(python: str) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    here = {"python_version": python, "python_full_version": f"{python}.2"}
    pinned: dict[str, list[str]] = {}
    for pin in pins:
        if pin.marker is None or pin.marker.evaluate(here):
            pinned.setdefault(canonicalize_name(pin.name), []).append(str(pin.specifier).removeprefix("=="))
    assert [name for name, versions in pinned.items() if len(versions) > 1] == []
    for name, dependency in dependencies().items():
        assert pinned[canonicalize_name(name)][0] in dependency.specifier, name
