"""A specification is read as it stands, and a wrong one fails with file, key and choices."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

import pytest

from common.audits import TINY
from seepage.attacks import ATTACKS, FedAvg, InvertingGradients, UnknownSchedule
from seepage.audit.experiment import Clients, Data, Expectation, Experiment, Watch, parse, read_experiment
from seepage.audit.values import SpecError, build
from seepage.data import DATASETS
from seepage.defences import DEFENCES, Clip, GaussianNoise, NoDefence, TopK, WeightNoise, WeightSparsify, chain
from seepage.models import MODELS
from seepage.recipe import SGD, Adam, Recipe
from seepage.rounds import Federation
from seepage.threat import THREATS, Fact, ThreatModel


def read(text: str) -> Experiment:
    return parse(tomllib.loads(text), "spec.toml")


def only_case(text: str):
    (case,) = read(text).cases
    return case


def test_the_keys_of_the_file_are_the_fields_of_the_values() -> None:
    experiment = read("""
        name = "a table"
        about = "of a paper"
        seed = 7
        accuracy = true
        threshold = 25
        data = { name = "fashion-mnist", split = "test", raw = true, public = 3 }
        clients = { count = 5, examples = 2, partition = "dirichlet", alpha = 1 }
        model = { name = "mlp", options = { hidden = [8], activation = "tanh" } }
        federation = { rounds = 4, per_round = 2, visible = "aggregate", server_lr = 2 }
        watch = { round = 3, clients = 2, together = 1 }
        attack = [{ name = "inverting-gradients", steps = 9, tv = 0 }]
        defence = [{ name = "top-k", share = 0.5 }, "none"]
        threat = ["eavesdropper", { name = "all-knowing-server" }]
        expect = [{ case = "all", metric = "psnr", reported = 20, source = "Table 1" }]

        [recipe]
        optimiser = { kind = "adam", lr = 0.5, betas = [0.5, 0.75] }
        epochs = 2
        batch_size = 1
        sends = "weights"
    """)
    assert (experiment.name, experiment.about, experiment.seed) == ("a table", "of a paper", 7)
    assert (experiment.accuracy, experiment.threshold) == (True, 25.0)
    assert experiment.expect == (Expectation("all", "psnr", 20.0, "Table 1"),)
    (case,) = experiment.cases
    assert case.data == Data("fashion-mnist", "test", True, public=3)
    assert case.clients == Clients(5, 2, "dirichlet", 1.0)
    assert (case.model.name, case.model.options) == ("mlp", {"hidden": [8], "activation": "tanh"})
    assert case.recipe == Recipe(Adam(0.5, (0.5, 0.75)), 2, 1, sends="weights")
    assert case.federation == Federation(4, 2, "aggregate", 2.0)
    assert case.watch == Watch(3, 2, 1)
    assert case.attacks == (InvertingGradients(steps=9, tv=0.0),)
    assert case.defences == (TopK(0.5), NoDefence())
    assert case.threats == (THREATS["eavesdropper"], THREATS["all-knowing-server"])


def test_an_absent_list_means_no_defence_and_an_honest_server() -> None:
    case = only_case('attack = ["inverting-gradients"]')
    assert case.defences == (NoDefence(),)
    assert case.threats == (THREATS["honest-server"],)
    assert case.attacks == (InvertingGradients(),)


def test_a_chain_of_defences_is_applied_in_the_order_of_the_file() -> None:
    case = only_case("""
        [[defence]]
        chain = [{ name = "clip", norm = 2 }, { name = "gaussian-noise", std = 0.5 }, "top-k"]
    """)
    assert case.defences == (chain(Clip(2.0), GaussianNoise(0.5), TopK()),)


def test_knobs_beside_the_preset_of_a_defence_go_before_it() -> None:
    case = only_case("""
        [[defence]]
        name = "weight-noise"
        preset = "as_code"
        std = 0.5
        both = false

        [[defence]]
        chain = ["clip", { name = "weight-sparsify", preset = "as_code" }]
    """)
    noise, chained = case.defences
    assert noise == WeightNoise(0.5, by_row=True, restore=True)
    assert chained == chain(Clip(), WeightSparsify(per_tensor=True, both=True))


def test_an_attack_that_is_a_knob_has_presets_too() -> None:
    lines = """
        [[attack]]
        name = "fedavg-unknown-schedule"
        attack = { kind = "FedAvg", preset = "%s", steps = 7 }
    """
    (attack,) = only_case(lines % "ours_femnist").attacks
    assert attack == UnknownSchedule(build(FedAvg, {**FedAvg.presets["ours_femnist"], "steps": 7}, ""))
    with pytest.raises(SpecError, match=r"attack\.preset: expected one of \['as_code_cifar', .*\], got 'theirs'"):
        read(lines % "theirs")


def test_metrics_of_papers_reach_every_attack_and_change_a_trial_only_where_asked_for() -> None:
    usual, asked = (
        list(read(f'attack = ["inverting-gradients"]\naccuracy = true\n{metrics}').trials())
        for metrics in ("", 'metrics = ["zhao2023", "zhao2023"]')
    )
    assert [t.metrics for t in asked] == [("zhao2023",)] * 2
    assert usual[0].digest != asked[0].digest
    assert usual[1].digest == asked[1].digest  # learning
    assert usual[0].scene == asked[0].scene


def test_a_threat_model_of_ones_own_grants_what_it_lists() -> None:
    case = only_case("""
        [[threat]]
        name = "insider"
        about = "knows the labels alone"
        facts = ["labels", "count"]
    """)
    assert case.threats == (ThreatModel("insider", frozenset({Fact.LABELS, Fact.COUNT}), "knows the labels alone"),)


def test_a_threat_model_of_ones_own_may_grant_nothing() -> None:
    assert only_case("threat = [{ facts = [] }]").threats == (ThreatModel("custom", frozenset()),)


def test_a_case_changes_what_it_names_and_keeps_the_rest() -> None:
    first, second = read("""
        clients = { count = 5, examples = 2 }
        attack = [{ name = "inverting-gradients", steps = 3 }]
        defence = ["clip"]

        [[case]]
        name = "as above"

        [[case]]
        name = "other"
        clients = { examples = 1 }
        defence = ["top-k", "none"]
        recipe = { sends = "gradient" }
    """).cases
    assert (first.name, first.clients, first.defences) == ("as above", Clients(5, 2), (Clip(),))
    assert (second.name, second.clients, second.defences) == ("other", Clients(5, 1), (TopK(), NoDefence()))
    assert second.attacks == first.attacks == (InvertingGradients(steps=3),)
    assert (first.recipe, second.recipe) == (Recipe(), Recipe(sends="gradient"))


def test_a_label_is_what_tables_call_an_attack_and_changes_nothing_else() -> None:
    named = read('attack = [{ name = "inverting-gradients", label = "mine", steps = 3 }]')
    plain = read('attack = [{ name = "inverting-gradients", steps = 3 }]')
    (trial,), (other,) = named.trials(), plain.trials()
    assert (trial.label, other.label) == ("mine", "inverting-gradients")
    assert (trial.attack, trial.digest) == (other.attack, other.digest)
    with pytest.raises(SpecError, match=r"attack\[0\].label: expected a text, got 3"):
        read('attack = [{ name = "inverting-gradients", label = 3 }]')


def test_every_attack_meets_every_defence_under_every_threat_in_every_case_for_every_group_of_clients() -> None:
    experiment = read("""
        accuracy = true
        clients = { count = 5 }
        watch = { together = 2 }
        attack = [{ name = "inverting-gradients", steps = 1 }, { name = "inverting-gradients", steps = 2 }]
        defence = ["none", "clip", "top-k"]
        threat = ["eavesdropper", "honest-server"]
        case = [{ name = "a" }, { name = "b", federation = { visible = "aggregate" } }]
    """)
    trials = list(experiment.trials())
    attacks = [t for t in trials if t.attack is not None]
    assert len(trials) == len({t.digest for t in trials}) == (2 * 3 * 2 * 3 + 3) + (2 * 3 * 2 * 1 + 3)
    assert [(t.first, t.last) for t in attacks[:3]] == [(0, 2), (2, 4), (4, 5)]
    assert [(t.first, t.last) for t in attacks if t.case == "b"] == [(0, 1)] * 12


@pytest.mark.parametrize(
    ("spec", "limit", "watched"),
    [
        ("clients = { count = 9 }", None, 9),
        ("clients = { count = 9 }", 4, 4),
        ("clients = { count = 9 }\nwatch = { clients = 2 }", 4, 2),
        ("clients = { count = 9 }\nwatch = { clients = 20 }", None, 9),
        ("clients = { count = 9 }\nfederation = { per_round = 3 }", None, 3),
        ("clients = { count = 9 }\nfederation = { visible = 'aggregate' }", 4, 1),
    ],
)
def test_as_many_clients_are_attacked_as_answered_and_are_watched(spec: str, limit: int | None, watched: int) -> None:
    trials = list(read(f'attack = ["inverting-gradients"]\n{spec}').trials(limit))
    assert sorted(k for t in trials for k in range(t.first, t.last)) == list(range(watched))


def test_the_seed_of_the_command_line_goes_before_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("seed = 3")
    assert read_experiment(path).seed == 3
    assert read_experiment(path, seed=5).seed == 5


def test_a_file_without_a_name_is_called_as_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("")
    assert read_experiment(path).name == "mine"


def test_the_embedded_audit_attacks_four_clients_behind_each_defence_and_measures_accuracy() -> None:
    with resources.as_file(resources.files("seepage.audit") / "default.toml") as path:
        experiment = read_experiment(path)
    trials = list(experiment.trials())
    attacked = [t for t in trials if t.attack is not None]
    assert len(trials) == 6
    assert [t.defence.name for t in attacked] == ["none", "top-k", "gaussian-noise"]
    assert [(t.first, t.last) for t in attacked] == [(0, 4)] * 3
    assert len({t.digest for t in trials}) == 6


FIELDS = {
    "data": ["dtype", "missing", "name", "public", "raw", "sensitive", "size", "split"],
    "clients": ["alpha", "count", "examples", "fewer", "partition", "skip"],
    "model": ["name", "options", "pretraining"],
    "recipe": ["batch_norm", "batch_size", "epochs", "optimiser", "sends", "sends_buffers", "shuffle"],
    "federation": ["group", "per_round", "repeats", "rounds", "server_lr", "together", "visible"],
    "watch": ["clients", "every", "round", "since", "together"],
}
PARTITIONS = ["stored", "distinct", "iid", "dirichlet", "owner"]
FACTS = sorted(fact.value for fact in Fact)

# What is written, and every piece that the message must have beside the name of the file.
WRONG: dict[str, tuple[str, list[object]]] = {
    "no TOML": ("name = \n", ["expected TOML", "line 1"]),
    "unknown key": ("clientz = 1", ["unknown key 'clientz'", "'clients'", "'attack'", "'threshold'"]),
    **{
        f"unknown key of {section}": (f"[{section}]\nzzz = 1", [f"{section}: unknown key 'zzz'", fields])
        for section, fields in FIELDS.items()
    },
    "unknown key of an attack": (
        'attack = [{ name = "inverting-gradients", step = 3 }]',
        ["attack[0]: unknown key 'step'", "'steps'"],
    ),
    "unknown key of a defence": (
        'defence = [{ name = "clip", size = 3 }]',
        ["defence[0]: unknown key 'size'", ["norm"]],
    ),
    "unknown preset of a defence": (
        'defence = [{ name = "weight-noise", preset = "as_text" }]',
        ["defence[0].preset: expected one of ['as_code', 'as_paper'], got 'as_text'"],
    ),
    "preset that is no name": (
        'defence = [{ name = "weight-noise", preset = ["as_code"] }]',
        ["defence[0].preset: expected one of", "got ['as_code']"],
    ),
    "unknown metrics": (
        'metrics = ["lee2020"]',
        ["metrics[0]: expected one of ['dimitrov2022', 'yue2023', 'zhao2023'], got 'lee2020'"],
    ),
    "unknown key of a case": (
        'case = [{ name = "a", seed = 3 }]',
        ["case[0]: unknown key 'seed'", sorted(["name", *FIELDS, "attack", "defence", "threat"])],
    ),
    "unknown key of an optimiser": (
        'recipe = { optimiser = { kind = "SGD", rate = 1.0 } }',
        ["recipe.optimiser: unknown key 'rate'", ["lr", "momentum", "nesterov", "weight_decay"]],
    ),
    "unknown key of an expectation": (
        'expect = [{ case = "all", metric = "psnr", value = 3 }]',
        ["expect[0]: unknown key 'value'", "'reported'"],
    ),
    "unknown key of a threat model": (
        "threat = [{ facts = [], fact = 1 }]",
        ["threat[0]: unknown key 'fact'", ["about", "facts", "name"]],
    ),
    "word for a number": ('clients = { count = "five" }', ["clients.count: expected int, got 'five'"]),
    "fraction for a count": ("clients = { count = 2.5 }", ["clients.count: expected int, got 2.5"]),
    "truth for a number": ("clients = { count = true }", ["clients.count: expected int, got True"]),
    "number for a truth": ("accuracy = 1", ["accuracy: expected bool, got 1"]),
    "number for a name": ("name = 1", ["name: expected str, got 1"]),
    "word for an optional number": ('clients = { examples = "all" }', ["clients.examples: expected int, got 'all'"]),
    "infinite number": ("threshold = inf", ["threshold: expected a finite number, got inf"]),
    "no number": ('defence = [{ name = "clip", norm = nan }]', ["defence[0].norm: expected a finite number, got nan"]),
    "word for a list": (
        'recipe = { optimiser = { kind = "Adam", betas = 0.9 } }',
        ["recipe.optimiser.betas: expected a list, got 0.9"],
    ),
    "list of another length": (
        'recipe = { optimiser = { kind = "Adam", betas = [0.9] } }',
        ["recipe.optimiser.betas: expected 2 entries, got 1"],
    ),
    "word in a list of numbers": (
        'recipe = { optimiser = { kind = "Adam", betas = [0.9, "a"] } }',
        ["recipe.optimiser.betas[1]: expected float, got 'a'"],
    ),
    **{
        f"number for the table {section}": (f"{section} = 3", [f"{section}: expected a table, got 3"])
        for section in FIELDS
    },
    "number for the table of a case": ('case = [{ name = "a", data = 3 }]', ["case[0].data: expected a table, got 3"]),
    "number for options": ("model = { options = 3 }", ["model.options: expected a table, got 3"]),
    "date among options": (
        'model = { name = "mlp", options = { hidden = 2020-01-01 } }',
        ["model.options: expected plain data, got datetime.date(2020, 1, 1)"],
    ),
    **{
        f"word for the list of {kind}": (f'{kind} = "word"', [f"{kind}: expected a list", f"[[{kind}]]", "'word'"])
        for kind in ("attack", "defence", "threat", "case", "expect")
    },
    **{
        f"one table for the list of {kind}": (f'[{kind}]\nname = "word"', [f"{kind}: expected a list", f"[[{kind}]]"])
        for kind in ("attack", "defence", "threat", "case", "expect")
    },
    **{
        f"number for an entry of {kind}": (f"{kind} = [3]", [f"{kind}[0]: expected a", "got 3"])
        for kind in ("attack", "defence", "threat", "case", "expect")
    },
    "list for a name": ('attack = [{ name = ["a"] }]', ["attack[0]: expected `name`", sorted(ATTACKS), "got ['a']"]),
    "list for the name of a threat model": ('threat = [{ name = ["a"] }]', ["threat[0]", sorted(THREATS), "got ['a']"]),
    "word for a chain": ('defence = [{ chain = "clip" }]', ["defence[0].chain: expected a list", "'clip'"]),
    "word for facts": ('threat = [{ facts = "labels" }]', ["threat[0].facts: expected a list", "'labels'"]),
    "list for a fact": ('threat = [{ facts = [["labels"]] }]', ["threat[0].facts", FACTS, "got ['labels']"]),
    "number for a threat model's name": (
        "threat = [{ name = 3, facts = [] }]",
        ["threat[0].name: expected str, got 3"],
    ),
    "unknown split": ('data = { split = "val" }', ["data.split: expected one of", ["train", "test"], "'val'"]),
    "unknown partition": (
        'clients = { partition = "even" }',
        ["clients.partition: expected one of", PARTITIONS, "'even'"],
    ),
    "unknown answer": (
        'recipe = { sends = "all" }',
        ["recipe.sends: expected one of", ["gradient", "update", "weights"], "'all'"],
    ),
    "unknown visibility": ('federation = { visible = "sum" }', ["federation.visible", ["each", "aggregate"], "'sum'"]),
    "unknown optimiser": (
        'recipe = { optimiser = { kind = "RMSprop" } }',
        ["recipe.optimiser: expected `kind` to be one of", ["Adam", "SGD"], "'RMSprop'"],
    ),
    "optimiser without a kind": (
        'recipe = { optimiser = { name = "SGD", lr = 0.1 } }',
        ["recipe.optimiser: expected `kind` to be one of", ["Adam", "SGD"], "got only the keys ['lr', 'name']"],
    ),
    "unknown attack": ('attack = ["guess"]', ["attack[0]", sorted(ATTACKS), "'guess'"]),
    "attack without a name": ("attack = [{ steps = 3 }]", ["attack[0]", "`name`", sorted(ATTACKS), "None"]),
    "misspelt attack": ('attack = ["analytical"]', ["got 'analytical'; did you mean 'analytic'?"]),
    "misspelt key": ("[client]", ["unknown key 'client'", "; did you mean 'clients'?"]),
    "own attack without a module": (
        'attack = ["nowhere:Mine"]',
        ["attack[0].name", "`package.module:Class`", "nowhere"],
    ),
    "own attack without a class": (
        'attack = ["nowhere:"]',
        ["attack[0].name", "'nowhere:', which names a module alone"],
    ),
    "own attack that is none": ('attack = ["math:pi"]', ["attack[0].name: expected math:pi to be a frozen dataclass"]),
    "unknown defence": ('defence = ["none", "wall"]', ["defence[1]", sorted(DEFENCES), "'wall'"]),
    "unknown defence in a chain": ('defence = [{ chain = ["clip", "wall"] }]', ["defence[0].chain[1]", "'wall'"]),
    "unknown threat model": ('threat = ["god"]', ["threat[0]", sorted(THREATS), "`facts`", "'god'"]),
    "unknown fact": ('threat = [{ facts = ["all"] }]', ["threat[0].facts[0]: expected one of", FACTS, "'all'"]),
    "unknown data set": ('data = { name = "mnits" }', ["data.name: expected one of", sorted(DATASETS), "'mnits'"]),
    "unknown model": ('model = { name = "lenet" }', ["model.name: expected one of", sorted(MODELS), "'lenet'"]),
    "unknown option of a model": (
        'model = { name = "mlp", options = { width = 3 } }',
        ["model.options: unknown key 'width'", ["activation", "batch_norm", "bias", "hidden", "init"]],
    ),
    "case without a name": ("case = [{ clients = { count = 3 } }]", ["case[0]: expected a `name`, got None"]),
    "cases of one name": ('case = [{ name = "a" }, { name = "a" }]', ["case: expected different names", "['a', 'a']"]),
    "expectation without a metric": ('expect = [{ case = "all" }]', ["expect[0]: expected the key 'metric'"]),
    "expectation of an unknown case": (
        'expect = [{ case = "b", metric = "psnr" }]\ncase = [{ name = "a" }]',
        ["expect.case: expected one of", ["a"], "'b'"],
    ),
    "no step with several epochs": (
        'recipe = { sends = "gradient", epochs = 2 }',
        ["recipe: ", "epochs = 2", "'update'"],
    ),
    "no epoch": ("recipe = { epochs = 0 }", ["recipe: expected `epochs` of at least 1, got 0"]),
    "no round": ("federation = { rounds = 0 }", ["federation: expected `rounds` of at least 1, got 0"]),
    "no client": ("clients = { count = 0 }", ["clients: expected `count` of at least 1, got 0"]),
    "no example": ("clients = { examples = 0 }", ["clients: expected `examples` of at least 1", "got 0"]),
    "no skew": ('clients = { partition = "dirichlet", alpha = 0 }', ["clients: expected `alpha` above 0, got 0.0"]),
    "fewer of how many": (
        'clients = { partition = "owner", fewer = true }',
        ["clients: expected `examples`, the most per client", "got None and 'owner'"],
    ),
    "fewer of those dealt evenly": (
        'clients = { partition = "iid", examples = 2, fewer = true }',
        ["clients: ", "`partition = 'owner'` or 'dirichlet' beside `fewer = true`", "got 2 and 'iid'"],
    ),
    "fewer than no public example": ("data = { public = -1 }", ["data: expected `public` of at least 0, got -1"]),
    "round before the first": ("watch = { round = -1 }", ["watch: expected `round` of at least 0, got -1"]),
    "nobody watched": ("watch = { clients = 0 }", ["watch: expected `clients` of at least 1", "got 0"]),
    "nobody together": ("watch = { together = 0 }", ["watch: expected `together` of at least 1, got 0"]),
    "rounds that are stepped over": (
        "federation = { rounds = 30 }\nwatch = { round = 25, since = 0, every = 10 }",
        ["watch: expected `every` of at least 1", "got 10 from 0 to 25"],
    ),
    "seen since a later round": (
        "federation = { rounds = 3 }\nwatch = { round = 1, since = 2 }",
        ["watch: expected `since` from 0 to `round` = 1", "got 2"],
    ),
    "round after the last": ("watch = { round = 1 }", ["watch.round", "federation.rounds = 1", "got 1"]),
    "more clients in a round than there are": (
        "clients = { count = 3 }\nfederation = { per_round = 4 }",
        ["federation.per_round", "clients.count = 3", "got 4"],
    ),
    "share above one": (
        'defence = [{ name = "top-k", share = 2.0 }]',
        ["defence[0]: expected `share` in (0, 1], got 2.0"],
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_fails_with_its_name_the_key_and_what_was_expected(what: str, tmp_path: Path) -> None:
    text, pieces = WRONG[what]
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as failed:
        read_experiment(path)
    message = str(failed.value)
    assert message.startswith(f"{path}: ")
    for piece in pieces:
        assert str(piece) in message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "expected a TOML file, got none; check the path"),
        (lambda path: path.mkdir(), "expected a file"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "expected UTF-8"),
    ],
    ids=["absent", "folder", "bytes"],
)
def test_what_is_no_text_file_fails_with_its_path(make, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    make(path)
    with pytest.raises(SpecError, match=message) as failed:
        read_experiment(path)
    assert str(path) in str(failed.value)


def test_the_message_names_the_case_that_is_wrong() -> None:
    with pytest.raises(SpecError, match=r"spec\.toml: case\[1\]\.clients\.count: expected int, got 'x'"):
        read('case = [{ name = "a" }, { name = "b", clients = { count = "x" } }]')


def test_ones_own_model_and_data_are_not_looked_for_before_the_run() -> None:
    case = only_case('model = { name = "mine:net", options = { any = 1 } }\ndata = { name = "mine.data:load" }')
    assert (case.model.name, case.model.options, case.data.name) == ("mine:net", {"any": 1}, "mine.data:load")


def test_a_whole_number_stands_for_the_same_real_one() -> None:
    one, other = (only_case(f"recipe = {{ optimiser = {{ kind = 'SGD', lr = {lr} }} }}") for lr in ("1", "1.0"))
    assert one.recipe == other.recipe == Recipe(SGD(1.0))
    assert isinstance(one.recipe.optimiser.lr, float)


def test_the_tiny_audit_of_the_other_tests_parses() -> None:
    assert len(list(read(TINY).trials())) == 1
