"""Published models in the tables of the larger profiles, and the models instead of them without their corpora."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.arms import ON
from experiments.engine.jobs import Outcomes, composed
from experiments.engine.profiles import PROFILES, Setup
from experiments.paper import MAIN_RESULTS
from experiments.reproduce import SECTIONS
from experiments.sections import Section
from experiments.tables import main_results, table_6, table_7
from tests.experiments.tables.sample_outcomes import planned, write_outcomes


def setup_of(profile: str, tmp_path: Path, *overrides: str) -> Setup:
    return Setup(PROFILES[profile], overrides, tmp_path / "report", planning=True)


@pytest.mark.parametrize(
    ("profile", "steps"), [("gpu", 20_000), pytest.param("paper", 400_000, marks=pytest.mark.full)]
)
def test_table_7_is_one_billion_word(profile: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_7, "at_hand", lambda data: data.name == "lm1b")
    words = ("data.root=/data", "data.segment_len=64", "model.n_layer=2", "trainer.max_steps=7")
    runs = table_7._runs(setup_of(profile, tmp_path, *words))
    assert [arm.corpus.name for arm in runs if arm.corpus] == ["One Billion Word"] * 3
    for arm, arm_runs in runs.items():
        config = composed(arm_runs[0].overrides)
        assert (config.data.name, config.data.root, config.data.segment_len) == ("lm1b", "/data", 32)
        assert (config.model.name, config.model.n_layer, config.trainer.max_steps) == ("txl_lm1b_table7", 20, steps)
        assert config.memory.mem_len == (32 if arm.recurrence else 0)
        assert (config.encoding.name, config.optimizer.name) == (arm.encoding, "adam")
    assert [len(arm_runs) for arm_runs in runs.values()] == [2, 2, 2]


def test_table_7_is_of_shuffled_lines_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the corpus, in a small profile, and with a corpus of another level."""
    other_level = setup_of("gpu", tmp_path, "data=enwik8", "model=txl_enwik8_base")
    setups = {"no corpus": setup_of("gpu", tmp_path), "laptop": setup_of("laptop", tmp_path), "bytes": other_level}
    for name, setup in setups.items():
        monkeypatch.setattr(table_7, "at_hand", lambda data, name=name: name != "no corpus" and data.name == "lm1b")
        assert {arm.corpus.name for arm in table_7._runs(setup) if arm.corpus} == {"shuffled lines"}


def section(name: str, setup: Setup) -> Section:
    """Make a section of a reproduction whose jobs have finished."""
    jobs = planned(setup, name)
    write_outcomes(setup, jobs)
    done = frozenset(job.name for job in jobs)
    return SECTIONS[name].section(setup, Outcomes(setup.runs, setup.figures, tuple(jobs), done))


@pytest.mark.parametrize(
    ("profile", "largest"), [("gpu", "wt103_base"), pytest.param("paper", "wt103_large", marks=pytest.mark.full)]
)
def test_tables_and_figures_have_published_models_of_their_corpus(profile: str, largest: str, tmp_path: Path) -> None:
    setup = setup_of(profile, tmp_path)
    jobs = {job.name: job for job in planned(setup, "table_8", "figures_5_to_7")}
    assert "published-wt103_base" in jobs["recl-group1-seed1"].needs
    assert "recurrence-relative-full_loss-seed1" in jobs["recl-group2-seed1"].needs
    assert jobs[f"published-{largest}-attention"].needs == (f"published-{largest}",)
    other = setup_of(profile, tmp_path, "data=enwik8", "model=txl_enwik8_base")
    assert main_results.standard_run(other) is main_results.largest_run(other) is None


def test_the_last_rows_of_table_6_stand_beside_the_papers(tmp_path: Path) -> None:
    halves = (arm for arms in table_6.LOSSES.values() for arm in arms)
    others = {arm.key: () for arm in (*table_6.ROWS, *halves) if arm != ON}
    setup = Setup(replace(PROFILES["gpu"], seeds_of=others), (), tmp_path / "report", planning=True)
    found = section("table_6", setup)
    table = next(table for table in found.tables if table.id == "table_6_standard")
    assert list(table.rows) == ["init", "300", "450", "640"]
    assert [table.rows[row]["paper"].value for row in table.rows] == [23.43, 23.35, 23.16, 23.09]
    (job,) = (job for job in planned(setup, "table_6") if job.name == "published-wt103_base-lengths")
    assert "attention_lengths=[300,450,640]" in job.overrides
    sweep = json.loads((setup.runs / job.name / "evaluation.json").read_text())["valid"]["sweep"]
    losses = {f"{row['attention_length']}": row["ppl"] for row in sweep["lengths"]} | {"init": sweep["init"]["ppl"]}
    assert {row: table.rows[row]["loss"].value for row in table.rows} == losses
    own_corpus = replace(setup, overrides=("data=enwik8", "model=txl_enwik8_base"))
    assert not any(job.name.startswith("published") for job in planned(own_corpus, "table_6"))


def test_published_models_stand_beside_the_papers_rows() -> None:
    found = {"wt103_base": {"test/ppl": 25.0, "steps": 7}, "lm1b_large": {"test/ppl": 1.0, "steps": 8}}
    table = main_results._paper_table(1, found)
    assert len(table.rows) == len(MAIN_RESULTS[1].rows)
    row = {key: table.rows["Transformer-XL standard"][key].value for key in ("loss", "steps", "paper", "difference")}
    assert row == {"loss": 25.0, "steps": 7, "paper": 24.0, "difference": 1.0}
    assert table.rows["QRNN"]["paper"].value == 33.0
    assert table.rows["Transformer-XL large"]["loss"] is None
    letters = {"test/bpc": 1.1, "steps": 7}
    extra = main_results._paper_table(3, {"text8_base": letters})  # a model that the paper's table does not have
    assert [extra.rows["Transformer-XL 12 layers"][key] for key in ("paper", "difference")] == [None, None]
    assert list(main_results._paper_table(5, {}).rows)[-1] == "MoS, fine-tuned"
