"""Shapes of the tensors, by the letters that their names end with; `make test-shapes` checks them.

B   streams             T   tokens of a segment       D   width of the model
H   heads               E   width of a head           V   tokens of the vocabulary
M   states of memory    K   keys, M + T               S   distances K, …, 0
Q   requested tokens    N   layers
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Hidden = Float[Tensor, "B T D"]  # inputs, hidden states or outputs of a segment
States = Float[Tensor, "B M D"]  # memory of one layer
Requested = Float[Tensor, "B Q D"]  # outputs of the requested tokens
Tokens = Int[Tensor, "B T"]  # tokens of a segment
Targets = Int[Tensor, "B T_targets"]  # targets of its last tokens
TargetLosses = Float[Tensor, "B T_targets"]  # their losses in nats
Losses = Float[Tensor, "B T"]  # losses in nats
LogProbabilities = Float[Tensor, "B T V"]  # of every token of the vocabulary
Places = Int[Tensor, " Q"]  # places of the requested tokens
Counts = Int[Tensor, " B"]  # a number for every stream
Flags = Bool[Tensor, " B"]  # a truth value for every stream
Heads = Float[Tensor, "H B T E"]  # queries, or outputs of the heads
Keys = Float[Tensor, "H B K E"]  # keys, or values
KeysValues = Float[Tensor, "P H B K E"]  # keys and values (P = 2), or values alone (P = 1)
Scores = Float[Tensor, "H B T K"]  # scores of the keys
Mask = Float[Tensor, "T K"]  # 0 where a query may attend to a key, else -inf
HeadBias = Float[Tensor, "H E"]  # u or v of one layer
Distances = Float[Tensor, " S"]  # K, …, 0, S = K + 1
DistanceVectors = Float[Tensor, "H S E"]  # r of the distances
DistanceBiases = Float[Tensor, "H S"]  # biases of the distances
Sinusoids = Float[Tensor, "S D"]  # R of the distances
Angles = Float[Tensor, "S F"]  # F = E / 2 angles of each distance
LayerState = Float[Tensor, "B D"]  # state of a recurrent layer
