"""The server: federated averaging, every reply captured as it arrives."""

import os

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from seepage.frameworks.flower import captured
from ward.model import network

HOME = os.environ.get("WARD_FOLDER", ".")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    torch.manual_seed(0)
    strategy = captured(FedAvg(fraction_evaluate=0.0), f"{HOME}/server-captures")
    rounds = int(context.run_config["num-server-rounds"])
    strategy.start(grid=grid, initial_arrays=ArrayRecord(network().state_dict()), num_rounds=rounds)
