"""Small changes of a text: other orders of its places, other tokens at one of them."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["new_orders", "with_one_other"]


def new_orders(length: int, size: int, count: int, rng: torch.Generator) -> Tensor:
    """Orders of places that differ in one move each, the unchanged one first, (count, size).

    In turn two tokens are swapped, one is moved, a sequence is moved, or the beginning goes to the end (balunovic2022,
    section 4.3).

    Args:
        length: places that are filled.
        size: all places; those that are not filled stay where they are.
        count: how many.
        rng: draws places.

    Example:
        >>> new_orders(3, 4, 3, torch.Generator().manual_seed(0)).tolist()
        [[0, 1, 2, 3], [2, 1, 0, 3], [1, 2, 0, 3]]
    """

    def draw(most: int) -> int:
        return int(torch.randint(most, (1,), generator=rng))

    orders = [list(range(length))]
    for number in range(count - 1):
        order = list(range(length))
        if length > 1 and number % 4 == 0:
            one, other = draw(length), draw(length)
            order[one], order[other] = order[other], order[one]
        elif length > 1 and number % 4 == 1:
            order.insert(draw(length), order.pop(draw(length)))
        elif length > 1 and number % 4 == 2:
            begin, end = sorted((draw(length), 1 + draw(length)))
            part, rest = order[begin:end], order[:begin] + order[end:]
            place = draw(len(rest) + 1)
            order = rest[:place] + part + rest[place:]
        elif length > 1:
            begin = draw(length)
            order = order[begin:] + order[:begin]
        orders.append(order)
    rest_of_places = torch.arange(length, size).expand(len(orders), -1)
    return torch.cat([torch.tensor(orders, dtype=torch.long).reshape(len(orders), length), rest_of_places], 1)


def with_one_other(text: Tensor, place: int, tokens: Tensor) -> Tensor:
    """The text itself, with other tokens at one place, and, where it stands inside of it, without that place.

    Args:
        text: token ids (length,), filled up with 0.
        place: at most one behind its end.
        tokens: to try there.

    Returns:
        Different texts, (n, length), the text itself first.

    Example:
        >>> with_one_other(torch.tensor([5, 6, 0]), 0, torch.tensor([5, 7])).tolist()
        [[5, 6, 0], [7, 6, 0], [6, 0, 0]]
    """
    others = text.repeat(len(tokens), 1)
    others[:, place] = tokens
    shorter = torch.cat([text[:place], text[place + 1 :], text.new_zeros(1)])[None]
    inside = bool(text[place]) and int((text != 0).sum()) > 1
    return torch.cat([text[None], others[tokens != text[place]], *([shorter] if inside else [])])
