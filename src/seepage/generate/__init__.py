"""Images of a class from random numbers: what a generator is, ours, BigGAN, and their files."""

from seepage.generate.base import Generator
from seepage.generate.biggan import BigGAN
from seepage.generate.network import PictureDecoder, PictureEncoder
from seepage.generate.weights import check_generator, load_generator, save_generator

__all__ = [
    "BigGAN",
    "Generator",
    "PictureDecoder",
    "PictureEncoder",
    "check_generator",
    "load_generator",
    "save_generator",
]
