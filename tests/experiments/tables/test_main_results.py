"""Tables 1 to 5."""

from experiments.engine.outcomes import TrainingResult
from experiments.paper import MAIN_RESULTS
from experiments.tables import main_results


def test_published_models_stand_beside_the_papers_rows() -> None:
    def result(ppl: float) -> TrainingResult:
        return TrainingResult({"corpus": {"level": "word", "name": "x"}, "test/ppl": ppl, "steps": 7})

    table = main_results._paper_table(1, {"wt103_base": result(25.0), "lm1b_large": result(1.0)})
    assert len(table.rows) == len(MAIN_RESULTS[1].rows)
    row = {key: table.number("Transformer-XL standard", key).value for key in ("loss", "steps", "paper", "difference")}
    assert row == {"loss": 25.0, "steps": 7, "paper": 24.0, "difference": 1.0}
    assert table.number("QRNN", "paper").value == 33.0
    assert table.rows["Transformer-XL large"]["loss"] is None
    letters = TrainingResult({"corpus": {"level": "char", "name": "x"}, "test/bpc": 1.1, "steps": 7})
    extra = main_results._paper_table(3, {"text8_base": letters})  # a model that the paper's table does not have
    assert extra.rows["Transformer-XL 12 layers"]["paper"] is None
    assert extra.rows["Transformer-XL 12 layers"]["difference"] is None
    assert list(main_results._paper_table(5, {}).rows)[-1] == "MoS, fine-tuned"
