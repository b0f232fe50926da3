"""An agent that must remember: a cue at an episode's start decides the reward at its end.

    python examples/recall_agent.py

In every episode the agent walks along a corridor with 5 to 12 steps. At the first step it sees one of four signs, then
bare walls, and at the end a junction with four ways; only the sign's way is rewarded. The same agent is trained with
memory and without it, by plain policy gradient (REINFORCE, Williams 1992), and both success rates are printed. Without
memory nothing beats chance, 25 %: at the junction the sign is out of sight. It takes a minute on one core.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from txl_lightning import TransformerXL, TransformerXLConfig

WAYS, SHORTEST, LONGEST = 4, 5, 12


class Corridors:
    """B corridors side by side; one that ends is followed by another one with a new sign and length."""

    def __init__(self, n_streams: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.first_B = torch.ones(n_streams, dtype=torch.bool)
        self.sign_B = torch.zeros(n_streams, dtype=torch.int64)
        self.left_B = torch.zeros(n_streams, dtype=torch.int64)

    def observe(self) -> Tensor:
        """Begin the corridors that are due; return the signs, walls and junctions that are in sight, one-hot."""
        drawn_2B = torch.rand(2, len(self.first_B), generator=self.generator)
        sign_B = (drawn_2B[0] * WAYS).long()
        steps_B = SHORTEST + (drawn_2B[1] * (LONGEST - SHORTEST + 1)).long()
        self.sign_B = torch.where(self.first_B, sign_B, self.sign_B)
        self.left_B = torch.where(self.first_B, steps_B, self.left_B) - 1
        later_B = torch.where(self.left_B > 0, WAYS, WAYS + 1)  # wall or junction
        seen_B = torch.where(self.first_B, self.sign_B, later_B)
        return nn.functional.one_hot(seen_B, WAYS + 2).float()

    def act(self, way_B: Tensor) -> tuple[Tensor, Tensor]:
        """Take a step; return the rewards, and which episodes are done."""
        self.first_B = self.left_B == 0
        is_right_B = way_B == self.sign_B
        return (self.first_B & is_right_B).float(), self.first_B


def train(mem_len: int, n_steps: int, n_streams: int = 64, seed: int = 1) -> float:
    """Train an agent; return its success rate in the last fifth of the steps, while it still learns.

    Every step is a segment with one observation. A step's gradient reaches the weights that read the memory, not the
    steps before it. Only an episode's last action is rewarded, so only that one is credited.
    """
    torch.manual_seed(seed)
    config = TransformerXLConfig(
        vocab_size=None,
        mem_len=mem_len,
        n_layer=2,
        d_model=32,
        n_head=2,
        d_head=16,
        d_inner=64,
        dropout=0.0,
    )
    model = TransformerXL(config)
    eye = nn.Linear(WAYS + 2, 32)
    hand = nn.Linear(32, WAYS)
    agent = nn.ModuleList([eye, model, hand])
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    corridors = Corridors(n_streams, seed)
    memory = model.start_memory(n_streams)
    successes = []
    expected = 1 / WAYS  # the baseline: the rewards' running mean
    for step in range(n_steps):
        seen_B1D = eye(corridors.observe())[:, None]
        hidden_B1D, memory = model(inputs_BTD=seen_B1D, memory=memory)
        policy = Categorical(logits=hand(hidden_B1D[:, 0]))
        way_B = policy.sample()
        reward_B, done_B = corridors.act(way_B)
        memory = memory.reset(done_B)  # these streams' next observation begins an episode
        if not done_B.any():
            continue
        rewards = reward_B[done_B]
        advantages = rewards - expected
        loss = -(policy.log_prob(way_B)[done_B] * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected += 0.01 * advantages.mean().item()
        if step >= 0.8 * n_steps:
            successes += rewards.tolist()
    return sum(successes) / max(1, len(successes))


def main(arguments: list[str] | None = None) -> None:
    """Train both agents and print their success rates."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for name, mem_len in (("on", LONGEST), ("off", 0)):
        rate = train(mem_len, options.steps, seed=options.seed)
        print(
            f"memory {name}: {rate:.0%} of episodes succeed (chance: {1 / WAYS:.0%})",
            flush=True,
        )


if __name__ == "__main__":
    main()
