"""Captures of real federations: plain PyTorch loops, Flower, NVFlare.

Nothing here imports a framework before it is used.
"""
