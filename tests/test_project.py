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
from tests.docs.pages import README, ROOT
from txl_lightning import __version__


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_citation_has_the_version_and_date_of_the_changelog_and_names_the_paper() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    version, date = re.findall(r"^## \[(\d\S+)\] - (\S+)$", changelog, re.MULTILINE)[0]
    citation = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["version"] == version == __version__
    assert str(citation["date-released"]) == date
    assert citation["references"][0]["title"] in README.read_text()


def test_the_badges_tell_what_ci_tests_and_the_licence() -> None:
    pythons = read(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    readme = README.read_text()
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
    requirements = {}
    for line in re.findall(r'^    "(.*?)"', listed, re.MULTILINE):
        requirement = Requirement(line)
        requirements[requirement.name] = requirement
    return requirements


@pytest.mark.parametrize("name", KNOWN_HOLES)
def test_versions_with_known_holes_are_not_allowed(name: str) -> None:
    allowed = dependencies()[name].specifier
    for version in KNOWN_HOLES[name]:
        assert version not in allowed


# Makes `.venv/bin/python` with pip, as `python -m venv` does, and logs its calls.
STUB = """#!/bin/sh
echo "$0 $*" >> log
case "$0 $*" in
    *"venv --clear .venv") mkdir -p .venv/bin && cp python .venv/bin/python && touch .venv/pip;;
    *"-m pip --version") test -e .venv/pip;;
esac"""


def test_make_makes_a_half_made_environment_again(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    # .venv was stopped before it had pip.
    stubs = files(tmp_path, {".venv/bin/python": STUB, "python": STUB})
    files(tmp_path, {"constraints.txt": "torch==0\n", "pyproject.toml": ""})
    for stub in stubs:
        Path(stub).chmod(0o755)
    # Forget the make that runs the tests.
    env = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    command = ["make", ".venv/.ready", "PYTHON=./python"]
    for _ in range(2):
        (tmp_path / ".venv/.ready").unlink(missing_ok=True)
        subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    calls = (tmp_path / "log").read_text()
    assert calls.count("venv --clear") == 1
    assert calls.count("--editable .[dev]") == 2


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_python_has_one_pinned_version_of_each_dependency(python: str) -> None:
    environment = {"python_version": python, "python_full_version": f"{python}.2"}
    pinned: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        pin = Requirement(line)
        if pin.marker is None or pin.marker.evaluate(environment):
            name = canonicalize_name(pin.name)
            assert name not in pinned
            pinned[name] = str(pin.specifier).removeprefix("==")
    for name, dependency in dependencies().items():
        assert pinned[canonicalize_name(name)] in dependency.specifier, name
