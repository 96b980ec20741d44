"""A client of NVFlare, as its client API has it: receive, train one step, send."""

from __future__ import annotations

import nvflare.client as flare
import torch
from torch import nn
from ward_model import Net, examples

RATE = 0.1


def main() -> None:
    """Until the server has had enough rounds."""
    flare.init()
    held = examples(flare.get_site_name())
    while flare.is_running():
        received = flare.receive()
        model = Net()
        model.load_state_dict(received.params)
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
        nn.functional.cross_entropy(model(held.x), held.y).backward()
        optimiser.step()
        flare.send(
            flare.FLModel(params=model.state_dict(), params_type=flare.ParamsType.FULL, metrics={"accuracy": 0.0})
        )


if __name__ == "__main__":
    main()
