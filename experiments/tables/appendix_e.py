"""Appendix E: text that the trained model writes, seeded with a piece of the test split.

The paper shows samples of 500 and 1,000 tokens from the renormalised top 40, seeded with up to 512 tokens.
Runs: `txl generate` on the first run with recurrence, its encoding and the full loss.
Writes: the seed, how the text really goes on, and the samples.
"""

from __future__ import annotations

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.report.cells import Section
from experiments.tables.figures_5_to_7 import training

TITLE = "Appendix E: samples"
PAPER = (
    "Trained on WikiText-103, the large model writes articles of a thousand words that keep to their subject: seeded "
    "with up to 512 words of the test text, sampled from the 40 most likely words."
)


def job(setup: Setup) -> Job:
    """The samples."""
    run = training(setup)
    words = (f"checkpoint={run.checkpoint}", *setup.profile.generate)
    return Job("samples", "generate", words, run.arm, needs=(run.name,))


def jobs(setup: Setup) -> list[Job]:
    """The run and its samples."""
    return [training(setup), job(setup)]


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """The samples."""
    drawn = outcomes.result(job(setup), "generation.json")
    options = drawn["options"]
    return {
        "id": "appendix_e",
        "title": TITLE,
        "paper": PAPER,
        "here": (
            f"{options['n_tokens']} tokens from the top {options['top_k']}, temperature {options['temperature']:g}, "
            f"after {len(drawn['prompt']['tokens'])} tokens of the test split."
        ),
        "tables": [],
        "samples": [
            {
                "title": f"sample {i}",
                "context": drawn["prompt"]["text"],
                "truth": drawn["continuation"] or "",
                "text": sample["text"],
            }
            for i, sample in enumerate(drawn["samples"], 1)
        ],
    }
