"""The engine: the adjoint sweep through local training, the one optimisation loop, and what makes modules batch."""
