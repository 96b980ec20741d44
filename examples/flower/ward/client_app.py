"""A ward: one full-batch step of SGD on its own images."""

import os

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from seepage.frameworks.flower import CaptureMod
from ward.model import examples, network


def mine(context: Context):
    """The examples of the ward that runs in this context."""
    return examples(int(context.node_config["partition-id"]))


HOME = os.environ.get("WARD_FOLDER", ".")
app = ClientApp(mods=[CaptureMod(f"{HOME}/captures", examples=mine, secrets=f"{HOME}/secrets")])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on what is at hand and answer with new weights."""
    model, data = network(), mine(context)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=float(context.run_config["learning-rate"]))
    loss = nn.functional.cross_entropy(model(data.x), data.y)
    loss.backward()
    optimiser.step()
    metrics = MetricRecord({"num-examples": len(data), "loss": loss.item()})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
