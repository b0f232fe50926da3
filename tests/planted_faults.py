"""Plant one fault at a time in a copy of the project, and run the test that must catch it.

python -m tests.planted_faults               all faults; a minute or two a fault
python -m tests.planted_faults NAME ...      only these
python -m tests.planted_faults --check       only check that each line to change is in the package

The tests run as `make test` runs them: without those marked slow or full. A fault that its test
does not catch ends with status 1. tests/README.md has the table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import Phase, settings

ROOT = Path(__file__).parents[1]
PACKAGE = "txl_lightning"
FOLDERS = (
    PACKAGE,
    "benchmarks",
    "conf",
    "docs",
    "examples",
    "experiments",
    "hydra_plugins",
    "sweeps",
    "tests",
)

# pytest imports this module as a plugin: the first failure is enough, without a smallest example.
settings.register_profile("unshrunk", derandomize=True, deadline=None, phases=[Phase.generate])
PYTEST = (
    "-q",
    "-x",
    "-p",
    "no:cacheprovider",
    "-p",
    "tests.planted_faults",
    "--hypothesis-profile=unshrunk",
)


class Fault(NamedTuple):
    """A change of one line of the package.

    Args:
        name: what is wrong.
        original: part of a line, which occurs once in the package.
        planted: what replaces it.
        test: arguments of pytest.
    """

    name: str
    original: str
    planted: str
    test: str


FAULTS = [
    Fault(
        "sign of term (b)",
        'query = _with_bias(query_HBTE if "b" in terms else None, v_HE, scale)',
        'query = _with_bias(-query_HBTE if "b" in terms else None, v_HE, scale)',
        "tests/model/test_attention.py",
    ),
    Fault(
        "gradient of r",
        "shifted[..., :K].copy_(grad_XTK)",
        "shifted[..., :K].copy_(-grad_XTK)",
        "tests/model/test_attention.py",
    ),
    Fault(
        "relative shift by one key",
        "return line[:, T:].view(X, T, S - 1)[..., :n_keys]",
        "return line[:, T - 1 : -1].view(X, T, S - 1)[..., :n_keys]",
        "tests/model/test_attention.py",
    ),
    Fault(
        "causal mask off by one",
        "mask_TK = all_hidden_TK.triu(n_memory + 1)",
        "mask_TK = all_hidden_TK.triu(n_memory + 2)",
        "tests/model/test_recurrence.py",
    ),
    Fault(
        "attention length off by one",
        "mask_TK += all_hidden_TK.tril(n_memory - attention_len)",
        "mask_TK += all_hidden_TK.tril(n_memory - attention_len - 1)",
        "tests/model/test_attention.py",
    ),
    Fault(
        "sines and cosines exchanged",
        "return torch.cat([angles.sin(), angles.cos()], dim=-1)",
        "return torch.cat([angles.cos(), angles.sin()], dim=-1)",
        "tests/model/test_reference.py",
    ),
    Fault(
        "memory that is not detached",
        "keeps_gradient = self.keeps_gradient and torch.is_grad_enabled()",
        "keeps_gradient = torch.is_grad_enabled()",
        "tests/training/test_gradient_segments.py",
    ),
    Fault(
        "memory of the oldest states",
        "old = self.states[:, :, self.length - n_old :].to(states.dtype)",
        "old = self.states[:, :, :n_old].to(states.dtype)",
        "tests/model/test_recurrence.py",
    ),
    Fault(
        "order of streams",
        "np.arange(self.batch_size) * stream_len",
        "np.arange(self.batch_size)[::-1] * stream_len",
        "tests/data/test_streams.py",
    ),
    Fault(
        "resumed position of streams",
        "self._start = self.position % len(self)",
        "self._start = (self.position + 1) % len(self)",
        "tests/data/test_streams.py",
    ),
    Fault(
        "resumed random state",
        'torch.set_rng_state(state["cpu"])',
        "torch.set_rng_state(torch.get_rng_state())",
        "tests/test_old_checkpoint.py",
    ),
    Fault(
        "half loss of the first half",
        "return slice(T // 2, T)",
        "return slice(0, T // 2)",
        "tests/training/test_module.py",
    ),
    Fault(
        "learning rate a step late",
        "progress = min(1.0, (step - start) /",
        "progress = min(1.0, (step - 1 - start) /",
        "tests/training/test_optimizers.py",
    ),
    Fault(
        "no clipping",
        "most = math.inf if by_value else limit or math.inf",
        "most = math.inf",
        "tests/test_old_checkpoint.py",
    ),
    Fault(
        "lost streams of a rank",
        "return first, first + size + (part < more)",
        "return first, first + size",
        "tests/data/test_streams.py",
    ),
    Fault(
        "uneven ranks weigh the same",
        "share = len(batch.targets) * self.ranks.world_size * self._n_groups / self._n_streams",
        "share = 1.0",
        "tests/training/test_ranks.py",
    ),
    Fault(
        "bits in nats",
        "bits = nll / math.log(2)",
        "bits = nll",
        "tests/evaluation/test_scores.py",
    ),
    Fault(
        "mean over batches, not tokens",
        "self.sums[2] += nll.numel()",
        "self.sums[2] += len(nll)",
        "tests/checkpoints/test_metrics.py",
    ),
    Fault(
        "RECL threshold doubled",
        "ends_SC = gains_SC < threshold",
        "ends_SC = gains_SC < 2 * threshold",
        "tests/recl/test_effective_context.py",
    ),
    Fault(
        "RECL of the easiest positions",
        "order = np.argsort(-values_VP[0])",
        "order = np.argsort(values_VP[0])",
        "tests/recl/test_effective_context.py",
    ),
    Fault(
        "targets that are the tokens",
        "            window_BT[:, :-1],\n",
        "            window_BT[:, 1:],\n",
        "tests/data/test_streams.py",
    ),
]


def plant(root: Path, fault: Fault) -> Path:
    """Change the line of a fault below `root` and return its file.

    Raises:
        LookupError: the line is not in exactly one place of the package.
    """
    files = []
    for path in sorted((root / PACKAGE).rglob("*.py")):
        if fault.original in path.read_text("utf-8"):
            files.append(path)
    n_places = sum(path.read_text("utf-8").count(fault.original) for path in files)
    if n_places != 1:
        raise LookupError(
            f"{fault.name}: in {n_places} places of {PACKAGE}, not one: {fault.original}"
        )
    (path,) = files
    path.write_text(path.read_text("utf-8").replace(fault.original, fault.planted), "utf-8")
    return path


def copy_project(target: Path) -> None:
    """Copy the project without its environment and results."""
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, target / folder, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, target)


def is_caught(fault: Fault) -> bool:
    """Return whether the tests of a fault fail; say which fails first."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "project"
        copy_project(root)
        plant(root, fault)
        command = [sys.executable, "-m", "pytest", *PYTEST, *fault.test.split()]
        environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # no test ran
        raise RuntimeError(f"{fault.name}: {done.stdout}{done.stderr}")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    print(f"{fault.name}: {failed[0] if failed else 'NOT CAUGHT'}", flush=True)
    return done.returncode == 1


def main() -> int:
    """Return the exit status: 0 if every fault is caught."""
    parser = argparse.ArgumentParser(
        description="Plant faults and run the tests that must catch them."
    )
    parser.add_argument(
        "--check", action="store_true", help="only check that each line is in the package"
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="faults to plant; all if none is given"
    )
    arguments = parser.parse_args()
    faults = [fault for fault in FAULTS if not arguments.names or fault.name in arguments.names]
    if arguments.check:
        return check_lines(faults)
    caught = [is_caught(fault) for fault in faults]
    print(f"{sum(caught)} of {len(caught)} faults are caught")
    return int(not all(caught))


def check_lines(faults: list[Fault]) -> int:
    """Plant all faults in one copy, and print those whose line is gone."""
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "project"
        shutil.copytree(ROOT / PACKAGE, root / PACKAGE)
        for fault in faults:
            try:
                plant(root, fault)
            except LookupError as error:
                print(error)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
