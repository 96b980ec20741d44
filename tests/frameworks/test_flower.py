"""Flower's own client apps, mods and strategies, with messages handed over in this process."""

from __future__ import annotations

import copy
import io
import shutil
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from seepage.capture import Capture, examine, read_secret
from seepage.frameworks.arrange import arrange, find_captures, find_secrets
from seepage.spec import DataSpec, Examples
from seepage.task import Task

pytest.importorskip("flwr", reason="pip install 'seepage[flower]'")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.client import NumPyClient  # noqa: E402
from flwr.client.mod import secaggplus_mod  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod  # noqa: E402
from flwr.common import ndarrays_to_parameters  # noqa: E402
from flwr.server import LegacyContext, ServerConfig  # noqa: E402
from flwr.server.strategy import FedAvg as LegacyFedAvg  # noqa: E402
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from seepage.frameworks.flower import CaptureMod, captured  # noqa: E402

APP = Path(__file__).parents[2] / "examples" / "flower"
SPEC = DataSpec((4,), classes=3)
NODES = (11, 12, 13)


@pytest.fixture(autouse=True)
def _a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a SuperLink tells a ServerApp about itself."""
    for name, value in (("_run_id", 7), ("_task_id", 1), ("_node_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def held(node: int) -> Examples:
    rng = torch.Generator().manual_seed(node)
    return Examples(torch.randn(6, 4, generator=rng), torch.randint(3, (6,), generator=rng))


def learn(model: nn.Module, data: Examples) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model(data.x), data.y).backward()
    optimiser.step()


def client_app(mods: Sequence[Any]) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        learn(model, held(context.node_id))
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 6})}
        return Message(content=RecordDict(content), reply_to=message)

    return app


class InProcessGrid:
    """Delivers messages to client apps as a SuperLink does: as copies."""

    def __init__(self, app: ClientApp) -> None:
        self.app = app
        self.replies: list[Message] = []
        self.run = SimpleNamespace(run_id=7)
        self.contexts = {node: Context(7, node, {}, RecordDict(), {}) for node in NODES}

    def get_node_ids(self) -> Iterable[int]:
        return list(NODES)

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        del timeout
        replies = [self.app(copy.deepcopy(m), self.contexts[m.metadata.dst_node_id]) for m in messages]
        self.replies += copy.deepcopy(replies)
        return replies


def arrays_of(reply: Message) -> dict[str, np.ndarray[Any, Any]]:
    return {name: array.numpy() for name, array in next(iter(reply.content.array_records.values())).items()}


def run(strategy: Any, app: ClientApp, rounds: int = 1) -> InProcessGrid:
    grid = InProcessGrid(app)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(network().state_dict()), num_rounds=rounds)
    return grid


def sound(captures: Sequence[Capture]) -> None:
    task = Task(network(), SPEC)
    for capture in captures:
        assert [p for p in examine(arrange(capture, task), task) if p.fatal] == []


def test_the_mod_and_the_strategy_capture_the_same_and_what_each_client_did(tmp_path: Path) -> None:
    mod = CaptureMod(tmp_path / "c", examples=lambda context: held(context.node_id), secrets=tmp_path / "s")
    run(captured(FedAvg(fraction_evaluate=0.0), tmp_path / "server"), client_app([mod]), rounds=2)
    at_client = {c.client: c for c in find_captures(tmp_path / "c")}
    at_server = {c.client: c for c in find_captures(tmp_path / "server")}
    assert set(at_client) == set(at_server) == {str(node) for node in NODES}
    sound([*at_client.values(), *at_server.values()])
    for name, capture in at_client.items():
        assert [e.round for e in capture.exchanges] == [1, 2]
        for one, other in zip(capture.exchanges, at_server[name].exchanges, strict=True):
            assert one.examples == other.examples == 6
            torch.testing.assert_close(one.before, other.before, rtol=0, atol=0)
            torch.testing.assert_close(one.answer, other.answer, rtol=0, atol=0)
        model = network()  # what this client must have done in the first round
        learn(model, held(int(name)))
        torch.testing.assert_close(capture.exchanges[0].answer, dict(model.state_dict()), rtol=0, atol=0)
        secret = read_secret(tmp_path / "s" / "7" / f"{name}.safetensors")
        torch.testing.assert_close(secret.examples.x, held(int(name)).x)
    assert set(find_secrets(tmp_path / "s")) == set(at_client)


def test_neither_changes_a_message_or_the_result(tmp_path: Path) -> None:
    plain = run(FedAvg(fraction_evaluate=0.0), client_app([]))
    seen = run(captured(FedAvg(fraction_evaluate=0.0), tmp_path / "s"), client_app([CaptureMod(tmp_path / "c")]))
    # FedAvg asks clients in a random order.
    both = [sorted(grid.replies, key=lambda reply: reply.metadata.src_node_id) for grid in (plain, seen)]
    for one, other in zip(*both, strict=True):
        assert set(one.content) == set(other.content)
        for name, array in arrays_of(one).items():
            np.testing.assert_array_equal(array, arrays_of(other)[name])
        assert one.content["metrics"] == other.content["metrics"]


def test_noise_and_clipping_of_other_mods_are_captured_as_sent(tmp_path: Path) -> None:
    noise = LocalDpMod(clipping_norm=1.0, sensitivity=0.01, epsilon=10.0, delta=1e-5)
    grid = run(FedAvg(fraction_evaluate=0.0), client_app([CaptureMod(tmp_path / "out"), noise]))
    captures = {c.client: c for c in find_captures(tmp_path / "out")}
    for reply in grid.replies:
        sent = captures[str(reply.metadata.src_node_id)].exchanges[0].answer
        for name, array in arrays_of(reply).items():
            np.testing.assert_array_equal(sent[name].numpy(), array)
    honest = network()
    learn(honest, held(11))
    assert not torch.equal(captures["11"].exchanges[0].answer["0.weight"], honest.state_dict()["0.weight"])


def test_a_mod_inside_of_a_defence_would_not_see_it(tmp_path: Path) -> None:
    """What the place in the list means: the first mod is the outermost."""
    noise = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    grid = run(FedAvg(fraction_evaluate=0.0), client_app([noise, CaptureMod(tmp_path / "in")]))
    captures = {c.client: c for c in find_captures(tmp_path / "in")}
    reply = grid.replies[0]
    kept = captures[str(reply.metadata.src_node_id)].exchanges[0].answer["0.weight"]
    assert not np.array_equal(kept.numpy(), arrays_of(reply)["0.weight"])


def test_a_capture_that_cannot_be_written_does_not_stop_the_federation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import logging

    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    (tmp_path / "file").write_text("in the way")
    grid = run(captured(FedAvg(fraction_evaluate=0.0), tmp_path / "file"), client_app([CaptureMod(tmp_path / "file")]))
    assert len(grid.replies) == 3
    assert not any(reply.has_error() for reply in grid.replies)
    assert sum("seepage: could not capture" in record.message for record in caplog.records) == 4


class Client(NumPyClient):  # type: ignore[misc]
    """A client of the older kind, which sends lists of arrays."""

    def __init__(self, node: int) -> None:
        self.node = node

    def fit(self, parameters: Any, config: Any) -> Any:
        del config
        model = network()
        model.load_state_dict(
            {name: torch.tensor(array) for name, array in zip(model.state_dict(), parameters, strict=True)}
        )
        learn(model, held(self.node))
        return [tensor.numpy() for tensor in model.state_dict().values()], 6, {}


def legacy(strategy: Any, app: ClientApp, workflow: Any) -> InProcessGrid:
    grid = InProcessGrid(app)
    context = Context(7, 0, {}, RecordDict(), {})
    workflow(grid, LegacyContext(context, ServerConfig(num_rounds=1), strategy))
    return grid


def first_parameters() -> Any:
    return ndarrays_to_parameters([tensor.numpy() for tensor in network().state_dict().values()])


def legacy_strategy(folder: Path) -> Any:
    inner = LegacyFedAvg(
        fraction_evaluate=0.0, min_fit_clients=3, min_available_clients=3, initial_parameters=first_parameters()
    )
    return captured(inner, folder)


def client_fn(context: Context) -> Any:
    return Client(context.node_id).to_client()


def test_clients_and_strategies_of_the_older_kind_are_captured_too(tmp_path: Path) -> None:
    app = ClientApp(client_fn=client_fn, mods=[CaptureMod(tmp_path / "c")])
    legacy(legacy_strategy(tmp_path / "server"), app, DefaultWorkflow())
    at_client = {c.client: c for c in find_captures(tmp_path / "c")}
    at_server = find_captures(tmp_path / "server")
    sound([*at_client.values(), *at_server])
    task = Task(network(), SPEC)
    for capture in at_client.values():
        (exchange,) = arrange(capture, task).exchanges
        model = network()
        learn(model, held(int(capture.client)))
        torch.testing.assert_close(exchange.answer, {n: p.detach() for n, p in model.named_parameters()})
        assert exchange.buffers_after is not None
        assert int(exchange.buffers_after["1.num_batches_tracked"]) == 1
    assert {c.exchanges[0].examples for c in at_server} == {6}
    assert len(at_server) == 3


def test_secure_aggregation_leaves_the_server_a_sum_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import logging

    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    app = ClientApp(client_fn=client_fn, mods=[CaptureMod(tmp_path / "c"), secaggplus_mod])
    secure = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, clipping_range=8.0, max_weight=8)
    legacy(legacy_strategy(tmp_path / "server"), app, DefaultWorkflow(fit_workflow=secure))
    assert not (tmp_path / "c").exists(), "what a client sends is masked"
    assert any("capture at the server" in record.message for record in caplog.records)
    (capture,) = find_captures(tmp_path / "server")
    assert len(capture.members) == 3
    assert capture.exchanges[0].examples == 18
    (exchange,) = arrange(capture, Task(network(), SPEC)).exchanges
    mean = torch.zeros_like(exchange.answer["0.weight"])
    for node in NODES:
        model = network()
        learn(model, held(node))
        mean += model.state_dict()["0.weight"] / 3
    torch.testing.assert_close(exchange.answer["0.weight"], mean, rtol=0, atol=1e-4)  # quantised on its way


def test_clipping_by_the_server_is_seen_through_a_client_mod(tmp_path: Path) -> None:
    from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping

    private = DifferentialPrivacyClientSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), noise_multiplier=0.1, clipping_norm=1e-3, num_sampled_clients=3
    )
    run(captured(private, tmp_path / "server"), client_app([CaptureMod(tmp_path / "c"), fixedclipping_mod]))
    for capture in [*find_captures(tmp_path / "server"), *find_captures(tmp_path / "c")]:
        exchange = capture.exchanges[0]
        steps = {n: exchange.before[n] - a for n, a in exchange.answer.items() if a.is_floating_point()}
        # Flower counts BatchNorm's whole-number counter in the norm: what is left for the rest may be less.
        assert 0 < float(torch.cat([step.flatten() for step in steps.values()]).norm()) <= 1.01e-3


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`examples` and `secrets` together"):
        CaptureMod(tmp_path, secrets=tmp_path / "s")
    with pytest.raises(ValueError, match="outside of"):
        CaptureMod(tmp_path, examples=lambda context: held(1), secrets=tmp_path / "s")
    with pytest.raises(TypeError, match="expected a strategy"):
        captured("fedavg", tmp_path)  # type: ignore[call-overload]


def test_captures_below_the_app_are_not_packed_into_it(tmp_path: Path) -> None:
    """Flower packs files of some kinds, `.json` among them, that the app's `.gitignore` does not name."""
    build = pytest.importorskip("flwr.cli.build")
    app = tmp_path / "app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("captures", "server-captures", "secrets", "__pycache__"))
    for folder in ("captures/1/round-0001/2", "server-captures/1/round-0001"):
        (app / folder).mkdir(parents=True)
        (app / folder / "capture.json").write_text("{}")

    def packed() -> list[str]:
        with zipfile.ZipFile(io.BytesIO(build.build_fab_from_disk(app))) as files:
            return [name for name in files.namelist() if name.endswith("capture.json")]

    assert packed() == []
    (app / ".gitignore").unlink()
    assert len(packed()) == 2
