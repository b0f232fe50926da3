"""Appendix E: text sampled from the trained model after a piece of the test split.

Paper: samples of 500 and 1,000 tokens from the renormalised top 40, after up to 512 tokens of context.
Runs: `txl generate` on the run of Figures 5 to 7.
Writes: the context, how the text continues in the corpus, and the samples.
"""

from __future__ import annotations

from experiments.engine.jobs import Job, Outcomes
from experiments.engine.profiles import Setup
from experiments.report.sections import Sample, Section
from experiments.tables.figures_5_to_7 import training

TITLE = "Appendix E: samples"
PAPER = (
    "Trained on WikiText-103, the large model writes articles of a thousand words that keep to their subject: seeded "
    "with up to 512 words of the test text, sampled from the 40 most likely words."
)


def jobs(setup: Setup) -> list[Job]:
    """Return the run and its samples."""
    return [training(setup), _generation(setup)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the samples."""
    drawn = outcomes.result(_generation(setup), "generation.json")
    options = drawn["options"]
    return Section(
        id="appendix_e",
        title=TITLE,
        paper=PAPER,
        here=(
            f"The model continues {len(drawn['prompt']['tokens'])} tokens of the test split. Each of the "
            f"{options['n_tokens']} new tokens is drawn from the {options['top_k']} most likely ones, at temperature "
            f"{options['temperature']:g}."
        ),
        samples=tuple(
            Sample(f"sample {i}", drawn["prompt"]["text"], drawn["continuation"] or "", sample["text"])
            for i, sample in enumerate(drawn["samples"], 1)
        ),
    )


def _generation(setup: Setup) -> Job:
    run = training(setup)
    words = (f"checkpoint={run.checkpoint}", *setup.profile.generate)
    return Job("samples", "generate", words, run.arm, needs=(run.name,))
