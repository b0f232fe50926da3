"""Tables 1 to 5."""

from experiments.paper import MAIN_RESULTS
from experiments.tables import main_results


def test_every_published_row_is_in_the_papers_tables() -> None:
    extra = {"text8_base"}  # the original's configuration of a model that Table 3 does not list
    for name, (table, model) in main_results.PUBLISHED.items():
        if name not in extra:
            assert MAIN_RESULTS[table].row(model)
    for (table, arm), model in main_results.NEAREST_MODEL.items():
        assert MAIN_RESULTS[table].row(model)
        assert arm in main_results.ARMS.values()
