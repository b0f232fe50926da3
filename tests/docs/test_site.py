"""The site of the documentation (`make docs`), as far as it can be checked without MkDocs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import PAGES, ROOT, name_of
from tests.docs.test_links import LINK


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs/site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_on_the_site_and_in_its_navigation(hooks: ModuleType) -> None:
    in_navigation = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert {name_of(page) for page in PAGES} <= set(in_navigation)
    assert sorted(in_navigation) == sorted(name for name in hooks.shown() if name.endswith(".md"))


def test_every_link_stays_on_the_site_or_leads_to_the_repository(hooks: ModuleType) -> None:
    host, on_site, n_to_source = "https://example.org/owner/name", set(hooks.shown()), 0
    for page in (name for name in on_site if name.endswith(".md")):
        for target in LINK.findall(hooks.with_links_to_source((ROOT / page).read_text(), page, host)):
            path = target.partition("#")[0]
            if path.startswith(host):
                n_to_source += 1
                assert (ROOT / path.removeprefix(f"{host}/blob/HEAD/")).exists()
            elif path and not path.startswith("http"):
                assert (ROOT / page).parent.joinpath(path).resolve().relative_to(ROOT).as_posix() in on_site
    assert n_to_source > 50


def test_links_without_a_host_lead_to_the_checkout(hooks: ModuleType) -> None:
    text = "[a](../txl_lightning/cli.py#L1) [b](training.md#options) [c](https://example.org) [d](../missing.py)"
    changed = hooks.with_links_to_source(text, "docs/gpus.md", None)
    target, *others = LINK.findall(changed)
    assert target == f"{(ROOT / 'txl_lightning/cli.py').as_uri()}#L1"
    assert others == LINK.findall(text)[1:]
    assert Path(hooks.ROOT) == ROOT
