"""The frontier: points from rows, what is proven beside them, the cheapest within a policy, and the whole command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from common.audits import tiny
from seepage.audit.experiment import parse, read_experiment
from seepage.audit.frontier import bounds, cheapest, points, seed_folder, seeded
from seepage.audit.gate import Limit, Policy, read_policy
from seepage.audit.values import SpecError
from seepage.cli import app
from seepage.defences import DpSgd, FedCdp, GaussianNoise, LocalDp, Mixup, Sign, Soteria, TopK, chain
from seepage.defences.base import Chain
from seepage.metrics.intervals import mean_interval, share_interval
from seepage.recipe import Recipe
from seepage.threat import Fact

SPEC = """
name = "small"

[clients]
count = 4
examples = 1

[model]
name = "mlp"
options = { hidden = [8] }

[federation]
rounds = 2

[watch]
clients = 2

[[attack]]
name = "inverting-gradients"
steps = 3

[[defence]]
name = "none"

[[defence]]
name = "gaussian-noise"
std = [0.1, 1.0]

[[defence]]
name = "dp-sgd"
noise = 2.0
"""


def row(defence: str, value: float, **columns: Any) -> dict[str, Any]:
    common = {"case": "all", "attack": "a", "threat": "t", "defence_settings": "", "trial": "x", "outcome": "reduced"}
    place = {"client": "0", "item": "all", "metric": "recovered", "seed": 0}
    return {**common, **place, "defence": defence, "value": value, **columns}


def learnt(defence: str, value: float, seed: int = 0) -> list[dict[str, Any]]:
    common = {"attack": "none", "threat": "none", "metric": "accuracy", "client": "all", "seed": seed}
    return [row(defence, v, **common, item=str(i)) for i, v in enumerate((0.1, value))]


def test_a_list_in_place_of_a_knob_is_a_sweep() -> None:
    sweep = [
        {"name": "gaussian-noise", "std": [0.1, 0.2]},
        {"name": "fed-cdp", "layers": [3, 4], "snr": [0, -20]},  # layers are a list of their own
        {"chain": [{"name": "clip", "norm": [1, 2]}, {"name": "gaussian-noise", "std": 0.5}]},
    ]
    (case,) = parse({"attack": ["inverting-gradients"], "defence": sweep}, "here").cases
    assert case.defences[:2] == (GaussianNoise(0.1), GaussianNoise(0.2))
    assert case.defences[2:4] == (FedCdp(layers=(3, 4), snr=0.0), FedCdp(layers=(3, 4), snr=-20.0))
    assert [part.parts[0].norm for part in case.defences[4:] if isinstance(part, Chain)] == [1.0, 2.0]


def test_every_attacker_has_a_twin_who_knows_the_defence() -> None:
    first, second = seeded(tiny(seed=5), 2)
    assert (first.seed, second.seed, first.accuracy) == (5, 6, True)
    assert [Fact.DEFENCE in threat.facts for threat in first.cases[0].threats] == [False, True]
    (aware,) = seeded(tiny(threat=["informed-server"]), 1)
    assert [threat.name for threat in aware.cases[0].threats] == ["informed-server"]


def test_where_accuracy_is_that_of_another_case_nothing_else_is_learnt() -> None:
    both = tiny(case=[{"name": "shown"}, {"name": "learnt"}, {"name": "left out"}])
    shown, learnt = seeded(both, 1, cases=["shown"], accuracy_of="learnt")
    assert {(t.case, t.attack is None) for t in shown.trials()} == {("shown", False)}
    assert {(t.case, t.attack is None) for t in learnt.trials()} == {("learnt", True)}
    assert seed_folder(Path("out"), shown) != seed_folder(Path("out"), learnt)
    with pytest.raises(SpecError, match=r"expected a case of \['shown', 'learnt', 'left out'\], got 'nowhere'"):
        seeded(both, 1, accuracy_of="nowhere")


def test_without_an_attack_there_is_no_leakage() -> None:
    with pytest.raises(SpecError, match=r"at least one \[\[attack\]\]"):
        seeded(tiny(attack=[], accuracy=True), 1)


def test_the_strongest_attack_counts_with_clients_of_all_seeds() -> None:
    rows = pd.DataFrame(
        [row("none", v, client=c, seed=s) for v, c, s in [(1.0, "0", 0), (0.5, "1", 0), (0.0, "0", 1), (0.7, "1", 1)]]
        + [row("none", 0.1, client=c, attack="weak") for c in "01"]
        + learnt("none", 0.8, 0)
        + learnt("none", 0.6, 1)
    )
    (point,) = points(rows)
    assert point.attack == "a"
    expected = mean_interval([1.0, 0.5, 0.0, 0.7])
    assert (point.leak.mean, point.leak.n) == (pytest.approx(expected.mean), 4)
    assert (point.leak.low, point.leak.high) == (max(0.0, expected.low), min(1.0, expected.high))
    assert (point.accuracy.mean, point.accuracy.n) == (pytest.approx(0.7), 2)


def test_that_nothing_came_back_of_few_is_not_certain() -> None:
    rows = pd.DataFrame([row("none", 0.0, client=c) for c in "012"] + learnt("none", 0.8))
    assert points(rows)[0].leak == share_interval(0, 3)


def test_where_less_is_more_leakage_the_lowest_counts() -> None:
    rows = pd.DataFrame(
        [row("none", v, attack=a, metric="lpips") for v, a in [(0.2, "a"), (0.6, "b")]] + learnt("none", 0.8)
    )
    assert points(rows, "lpips")[0].attack == "a"


def test_the_cheapest_within_the_policy_is_the_most_accurate() -> None:
    rows = pd.DataFrame(
        [
            one
            for defence, leak, accuracy in (("none", 1.0, 0.9), ("much", 0.0, 0.5), ("some", 0.0, 0.7))
            for one in (row(defence, leak), *learnt(defence, accuracy))
        ]
    )
    policy = Policy((Limit("recovered", at_most=0.5), Limit("accuracy", at_least=0.3, statistic="last")))
    chosen = cheapest(points(rows, policy=policy))["all"]
    assert chosen is not None
    assert chosen.defence == "some"
    assert cheapest(points(rows, policy=Policy((Limit("accuracy", at_least=0.95),)))) == {"all": None}


def test_accuracy_can_be_that_of_another_case() -> None:
    shown = [row("none", 0.5, case="shown"), *({**r, "case": "shown"} for r in learnt("none", 0.2))]
    elsewhere = [{**r, "case": "learnt"} for r in learnt("none", 0.9)]
    (point,) = points(pd.DataFrame([*shown, *elsewhere]), accuracy_of="learnt")
    assert (point.case, point.leak.mean, point.accuracy.mean) == ("shown", 0.5, 0.9)
    with pytest.raises(SpecError, match=r"a case of \['shown'\], got 'learnt'"):
        points(pd.DataFrame(shown), accuracy_of="learnt")


def test_a_weak_attack_does_not_dilute_a_strong_one() -> None:
    rows = pd.DataFrame([row("none", 0.8), row("none", 0.0, attack="weak"), *learnt("none", 0.9)])
    (point,) = points(rows, policy=Policy((Limit("recovered", at_most=0.5),)))
    assert [verdict.outcome for verdict in point.verdicts] == ["broken"]


def test_a_failed_attack_keeps_no_limit() -> None:
    lost = row("none", math.nan, attack="b", metric="none", outcome="error: oops")
    rows = pd.DataFrame([row("none", 0.0), lost, *learnt("none", 0.9)])
    (point,) = points(rows, policy=Policy((Limit("recovered", at_most=0.5),)))
    assert [verdict.outcome for verdict in point.verdicts] == ["unmeasured"]


def test_an_unknown_or_absent_metric_is_refused() -> None:
    rows = pd.DataFrame([row("none", 0.0), *learnt("none", 0.9)])
    with pytest.raises(SpecError, match="expected one that `seepage list metrics` names, got 'likeness'"):
        points(rows, "likeness")
    with pytest.raises(SpecError, match=r"of \['recovered'\], got 'ssim'"):
        points(rows, "ssim")


RECIPE = Recipe(epochs=2, batch_size=4)


def test_private_defences_say_what_their_noise_hides() -> None:
    dp = DpSgd(norm=3.0, noise=1.5).mechanism(RECIPE, 10, rounds=2)
    assert dp is not None
    assert (dp.noise, dp.share, dp.steps) == (1.5, 0.4, 2 * 2 * 3)
    local = LocalDp(norm=2.0, sensitivity=1.0, epsilon=1.0, delta=1e-3)
    hidden = local.mechanism(RECIPE, 10, rounds=3)
    assert hidden is not None
    assert (hidden.noise, hidden.share, hidden.steps) == (local.std / 2, 1.0, 3)
    layered = FedCdp(norm=4.0, std=0.5, layers=(1, 1, 1, 1)).mechanism(RECIPE, 8)
    assert layered is not None
    assert layered.noise == pytest.approx(0.5)  # four examples' noises against four layers' norms
    for other in (FedCdp(norm=4.0, snr=0.0, layers=(1,)), TopK(), GaussianNoise(1.0), DpSgd(noise=0.0)):
        assert other.mechanism(RECIPE, 8) is None


def test_a_chain_is_as_private_as_its_part_unless_another_reads_the_examples() -> None:
    assert chain(DpSgd(noise=1.0), Sign()).mechanism(RECIPE, 8) == DpSgd(noise=1.0).mechanism(RECIPE, 8)
    assert chain(Mixup(classes=10), DpSgd(noise=1.0)).mechanism(RECIPE, 8) is None
    assert chain(DpSgd(noise=1.0), Soteria()).mechanism(RECIPE, 8) is None


def test_bounds_begin_at_the_guess_and_fall_with_noise() -> None:
    noisy = tiny(defence=[{"name": "dp-sgd", "noise": [0.5, 5.0, 1e6]}, "none"], accuracy=True)
    weak, strong, all_of_it = bounds(noisy, torch.device("cpu"), None).values()
    assert 0 < weak.prior == strong.prior < 1
    assert weak.most > strong.most > all_of_it.most == pytest.approx(all_of_it.prior, rel=1e-3)
    assert bounds(noisy, torch.device("cpu"), None, "psnr") == {}


def test_the_command_draws_it_and_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "policy.toml").write_text('[[limit]]\nmetric = "recovered"\nat_most = 1.0\n')
    command = ["frontier", "spec.toml", "--seeds", "2", "--device", "cpu", "--policy", "policy.toml", "--out", "out"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "The cheapest setting within the policy is" in " ".join(done.output.split())
    table = pd.read_csv(tmp_path / "out" / "frontier.csv")
    assert list(table["defence"]) == ["none", "gaussian-noise", "gaussian-noise", "dp-sgd"]
    assert table["bound"].notna().tolist() == [False, False, False, True]
    assert table["cheapest"].sum() == 1
    page = (tmp_path / "out" / "frontier.html").read_text()
    assert "provably" in page
    assert "http" not in page.replace("http-equiv", "")  # nothing is loaded from elsewhere
    assert page.count('<g class="mark">') >= 4
    assert (tmp_path / "out" / "frontier.svg").read_text().startswith("<svg xmlns=")
    files = sorted((tmp_path / "out").glob("seed-*/rows/*.parquet"))
    when = [file.stat().st_mtime_ns for file in files]
    again = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(again.stdout)[0]["accuracy"] == pytest.approx(table["accuracy"][0])
    assert [file.stat().st_mtime_ns for file in files] == when  # nothing ran again
    strict = tmp_path / "strict.toml"
    strict.write_text('[[limit]]\nmetric = "accuracy"\nstatistic = "last"\nat_least = 1.0\n')
    assert CliRunner().invoke(app, [*command, "--policy", "strict.toml"]).exit_code == 1


def test_the_example_is_the_one_of_the_page_and_can_be_read() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "frontier.md").read_text(encoding="utf-8")
    for name in ("defences.toml", "policy.toml"):
        assert (root / "examples" / "frontier" / name).read_text(encoding="utf-8") in page
    (experiment,) = seeded(read_experiment(root / "examples" / "frontier" / "defences.toml"), 1)
    assert len(experiment.cases[0].defences) == 11
    assert read_policy(root / "examples" / "frontier" / "policy.toml").limit == (Limit("recovered", at_most=0.05),)
