"""Wrong configurations: the message names the key, its value, and a right value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayfbnn.errors import ConfigError
from rayfbnn.spec import RunSpec
from tests.support.small import BASE, BINARY, CLASS, HYBRID, PRIORS, base

TWO_LAYERS = 'network.hidden=[{units=4,activation="tanh"},{units=3,activation="relu"}]'

# Each wrong configuration: the overrides that make it wrong, the key that must be named, and what the
# message must say would be right.
WRONG: list[tuple[tuple[str, ...], str, str]] = [
    # numbers at the top
    (("seed=-1",), "seed", "from 0 to 4294967295"),
    (("seed=4294967296",), "seed", "from 0 to 4294967295"),
    (("seed=1.5",), "seed", "a whole number"),
    (("seed='1'",), "seed", "a whole number"),
    (("seed=true",), "seed", "a whole number"),
    (("seed=123456789012345678901234567890",), "seed", "a whole number"),
    (("chains=0",), "chains", "at least 1"),
    (("chains=2.0",), "chains", "a whole number"),
    (("chains=4294967296",), "chains", "a whole number"),
    (("chains_per_batch=0",), "chains_per_batch", "at least 1"),
    (("draws_per_block=0",), "draws_per_block", "at least 1"),
    (("dtype=float16",), "dtype", '"float32" or "float64"'),
    (("device=cuda",), "device", '"cpu" or "gpu"'),
    # more than can be held, or than numbers can be
    (("initial.sigmas=1e300",), "initial.sigmas", "from 1e-12 to 1e12"),
    ((f"{HYBRID}.steps={10**18}",), f"{HYBRID}.steps", "at most 2147483647"),
    ((f"{HYBRID}.partitions={2**31}",), f"{HYBRID}.partitions", "at most 2147483647"),
    (
        (
            "network.hidden=[{units=1000000,activation='tanh'}]",
            "network.priors={ih0='1',ho0='1',bo='1',ti='1'}",
            "data.inputs=" + str([f"x{i}" for i in range(100)]),
        ),
        "network",
        "at most 100000000",
    ),
    # digits of other scripts, and underscores
    ((f"{PRIORS}.ih0=1_0:1",), f"{PRIORS}.ih0", "width must be a positive number"),
    ((f"{PRIORS}.ih0=\u0661:1",), f"{PRIORS}.ih0", "width must be a positive number"),
    ((f"{PRIORS}.ih0=1:\u0661",), f"{PRIORS}.ih0", "alpha must be a positive number"),
    ((f"{PRIORS}.ah0=\uff13",), f"{PRIORS}.ah0", "a number from 1e-06"),
    (("phase[\u0660].keep=false",), "phase.\u0660", "the number of an element below 2"),
    # files of connections that are none
    (('network.connections.ih0={file="a\\u0000b"}',), "network.connections.ih0.file", "no such file"),
    ((f"network.connections.ih0.file={'x' * 5000}",), "network.connections.ih0.file", "no such file"),
    (("network.connections.ih0.file=/dev/null",), "network.connections.ih0.file", "no such file"),
    # deeper than any configuration
    ((".".join(["a"] * 1600) + "=1",), "override", "nested more than 20 deep"),
    (("phase" + "[0]" * 1600 + "=1",), "override", "nested more than 20 deep"),
    # unknown keys
    (("chain=3",), "chain", "did you mean chains?"),
    (("samples=3",), "samples", "the keys here are seed"),
    (("iterations=3",), "iterations", "with [[phase]]"),
    (("data.trian=a.csv",), "data.trian", "did you mean train?"),
    (("model.knd=real",), "model.knd", "did you mean kind?"),
    (("network.hidden[0].activaton=tanh",), "network.hidden[0].activaton", "did you mean activation?"),
    (("phase[1].operations[1].decy=0.5",), "phase[1].operations[1].decy", "did you mean decay?"),
    (("phase[1].operations[0].times=2",), "phase[1].operations[0].times", "the keys here are op"),
    ((f"{HYBRID}.step_size=2",), f"{HYBRID}.step_size", "did you mean stepsize?"),
    # data
    (("data=3",), "data", "a table with train"),
    (("data={}",), "data.targets", "at least one column name"),
    (("data={train='a.csv',inputs=['y']}",), "data.targets", "at least one column name"),
    (("data.train=3",), "data.train", "the file of training cases"),
    (("data.train=''",), "data.train", "the file of training cases"),
    ((f"data.train={'x' * 5000}",), "data.train", "the file of training cases"),
    (('data.train="a\\u0000b.csv"',), "data.train", "the file of training cases"),
    (("data.inputs=x1",), "data.inputs", "a list of at least one column name"),
    (("data.inputs=[]",), "data.inputs", "a list of at least one column name"),
    (("data.inputs=[1]",), "data.inputs[0]", "a column name"),
    (("data.inputs=['x1','']",), "data.inputs[1]", "a column name"),
    (("data.inputs=['x1','x1']",), "data.inputs", "is listed twice"),
    (("data.targets=[]",), "data.targets", "a list of at least one column name"),
    (("data.targets=['y','y']",), "data.targets", "is listed twice"),
    (("data.targets=['x1']",), "data.targets", "an input or a target"),
    (("data.exclude=id",), "data.exclude", "a list of column names or patterns"),
    (("data.exclude=['id','id']",), "data.exclude", "is listed twice"),
    (("data.missing=drop",), "data.missing", '"indicator", or left out'),
    (("data.ordered=['x1']",), "data.ordered", "a table of columns with their levels in order"),
    (("data.ordered.x1=['S']",), "data.ordered.x1", "a table of columns with their levels in order"),
    (("data.ordered.x1=['S',1]",), "data.ordered.x1[1]", "the text of a level"),
    (("data.ordered.x1=['S','M','S']",), "data.ordered.x1", "is listed twice"),
    (("data.censored=end",), "data.censored", "only survival targets are censored"),
    (("data.censored=y",), "data.censored", "is also an input or a target"),
    (("data.sample_weight=w",), "data.sample_weight", "not the posterior of any data set"),
    (("data.standardize=inputs",), "data.standardize", '"inputs" or "inputs together", and'),
    (("data.standardize=['outputs']",), "data.standardize[0]", '"inputs together" or "targets"'),
    (("data.standardize=['inputs','inputs together']",), "data.standardize", "give only one"),
    (("data.standardize=['inputs','inputs']",), "data.standardize", "is listed twice"),
    ((*BINARY, "data.standardize=['targets']"), "data.standardize", 'leave "targets" out'),
    # model
    (("model=real",), "model", "a table with kind"),
    (("model={}",), "model.kind", '"real" or "binary" or "class"'),
    (("model.kind=rael",), "model.kind", "did you mean real?"),
    (("model.kind=quantile",), "model.kind", '"real" or "binary" or "class"'),
    (("model={kind='real'}",), "model.noise", '"0.1:0.2"'),
    (("model.noise=x0.1",), "model.noise", "leave out the x"),
    (("model.noise=rect(1)",), "model.noise", "width[:group"),
    (("network.priors.ih0=mixture(0.5, 1)",), "network.priors.ih0", "mixture(0.5, 1, 0.0025)"),
    (("network.priors.ih0=mixture(1.5, 1, 2)",), "network.priors.ih0", "below 1"),
    (("network.priors.ih0=rect(1e20)",), "network.priors.ih0", "from 1e-12 to 1e+12"),
    (("network.priors.ih0=mixture(0.5, 1, 2)", "network.priors.ah0=3"), "network.priors.ih0", "adjustments"),
    (("model.noise=0.1:1:2:3:4",), "model.noise", "at most 3 alphas"),
    (("model.classes=3",), "model.classes", "leave it out"),
    ((*BINARY, "model.noise='0.1'"), "model.noise", "leave it out"),
    ((*BINARY, "model.classes=2"), "model.classes", "leave it out"),
    ((*CLASS, "model.classes=1"), "model.classes", "at least 2"),
    ((*CLASS, "model.classes=2.5"), "model.classes", "a whole number"),
    ((*CLASS, "data.targets=['y','z']"), "data.targets", "exactly one target"),
    # network
    (("network=3",), "network", "a table with hidden and priors"),
    (("network={hidden=[],priors=3}",), "network.priors", "a table of priors"),
    (("network.hidden=8",), "network.hidden", "a list of layers"),
    (("network.hidden=[8]",), "network.hidden[0]", "a layer"),
    (("network.hidden[0].units=0",), "network.hidden[0].units", "from 1 to 1000000"),
    (("network.hidden[0].units=8.5",), "network.hidden[0].units", "a whole number"),
    (("network.hidden=[{activation='tanh'}]",), "network.hidden[0].units", "a whole number"),
    (("network.hidden[0].activation=tahn",), "network.hidden[0].activation", "did you mean tanh?"),
    (("network.priors=1",), PRIORS, "a table of priors"),
    (("network.priors={}",), PRIORS, "give a prior for ih0"),
    ((f"{PRIORS}.h0h1=1",), f"{PRIORS}.h0h1", "the possible groups are ti, ih0, bh0, th0, ho0, io, bo"),
    ((f"{PRIORS}.ih1=1",), f"{PRIORS}.ih1", "did you mean ih0?"),
    ((f"{PRIORS}.ih=1",), f"{PRIORS}.ih", "give only one"),
    ((TWO_LAYERS, f"{PRIORS}.ho2=1"), f"{PRIORS}.ho2", "the possible groups are"),
    ((f"{PRIORS}.ih0=-",), PRIORS, "give a prior for ih0"),
    ((f"{PRIORS}.ho0=-",), PRIORS, "give a prior for ho0"),
    ((TWO_LAYERS,), PRIORS, "give a prior for ih1 or h0h1"),
    ((TWO_LAYERS, f"{PRIORS}.h0h1=1", f"{PRIORS}.ho0=1"), PRIORS, "give a prior for ho1"),
    (("network={hidden=[],priors={}}",), PRIORS, "give a prior for io or bo"),
    (("network={hidden=[],priors={ti='1',bo='1'}}",), PRIORS, "give a prior for io"),
    ((f"{PRIORS}.ih0=0:1",), f"{PRIORS}.ih0", "a positive number"),
    ((f"{PRIORS}.ih0=nan",), f"{PRIORS}.ih0", "a positive number"),
    ((f"{PRIORS}.ih0=1:0",), f"{PRIORS}.ih0", "alpha must be a positive number"),
    ((f"{PRIORS}.ih0=1:1:1:1:1",), f"{PRIORS}.ih0", "at most 3 alphas"),
    ((f"{PRIORS}.bh0=1:1:1:1",), f"{PRIORS}.bh0", "at most 2 alphas"),
    ((f"{PRIORS}.bh0=x1",), f"{PRIORS}.bh0", "is for weights"),
    ((f"{PRIORS}.ih0=1e-300",), f"{PRIORS}.ih0", "from 1e-12 to 1e+12"),
    ((f"{PRIORS}.ih0=1:1e300",), f"{PRIORS}.ih0", "left out for infinity"),
    ((f"{PRIORS}.ho0=x1:1:0.001",), f"{PRIORS}.ho0", "use a larger alpha or no x"),
    ((f"{PRIORS}.ih0=true",), f"{PRIORS}.ih0", 'such as "0.5:0.2"'),
    # initial
    (("initial=0.5",), "initial", "a table with sigmas"),
    (("initial.sigmas=0",), "initial.sigmas", "from 1e-12 to 1e12"),
    (("initial.sigmas=half",), "initial.sigmas", "from 1e-12 to 1e12"),
    (("initial.from_prior=true",), "initial", "give only one"),
    (("initial.from_prior=1",), "initial.from_prior", "true or false"),
    (("initial={shared=true}",), "initial.shared", "applies only with from_prior = true"),
    # phases and operations
    (("phase=[]",), "phase", "at least one [[phase]]"),
    (("phase=[" + "{iterations=3, operations=[{op='negate'}]}," * 1001 + "]",), "phase", "at most 1000"),
    (("phase={iterations=3}",), "phase", "at least one [[phase]]"),
    (("phase=[{iterations=3}]",), "phase[0].operations", "a list of at least one operation"),
    (("phase=[{operations=[{op='heatbath'}]}]",), "phase[0].iterations", "a whole number"),
    (("phase[0].iterations=0",), "phase[0].iterations", "from 1 to"),
    (("phase[0].iterations=4294967295",), "phase", "at most 4294967295"),
    (("phase[0].keep=maybe",), "phase[0].keep", 'true, false or "warmup"'),
    (("phase[1].keep=false",), "phase[1].keep", "use true, or leave it out"),
    (("phase[0].operations=[]",), "phase[0].operations", "a list of at least one operation"),
    (("phase[0].operations=heatbath",), "phase[0].operations", "a list of at least one operation"),
    (("phase[0].operations=['heatbath']",), "phase[0].operations[0]", "must be a table"),
    (("phase[0].operations=[{}]",), "phase[0].operations[0].op", '"heatbath"'),
    (("phase[0].operations[0].op=heat-bath",), "phase[0].operations[0].op", "did you mean heatbath?"),
    (("phase[0].operations[0].op=3",), "phase[0].operations[0].op", '"hybrid"'),
    (("phase[0].operations[1].decay=1",), "phase[0].operations[1].decay", "at least 0 and below 1"),
    (("phase[0].operations[1].decay=slow",), "phase[0].operations[1].decay", "at least 0 and below 1"),
    (("phase[1].operations[2].times=0",), "phase[1].operations[2].times", "at least 1"),
    (("phase[1].operations[2].times=100001",), "phase[1].operations", "at most 100000"),
    (("phase[1].operations[2].operations=[]",), "phase[1].operations[2].operations", "at least one"),
    (("phase[1].operations[2]={op='repeat',times=2}",), "phase[1].operations[2].operations", "a list"),
    (("phase[1].operations[2]={op='hybrid'}",), "phase[1].operations[2].steps", "such as 64"),
    ((f"{HYBRID}={{op='hybrid',steps=3}}",), f"{HYBRID}.stepsize", "such as 0.3"),
    ((f"{HYBRID}.steps=0",), f"{HYBRID}.steps", "at least 1"),
    ((f"{HYBRID}.window=12",), f"{HYBRID}.window", "from 1 to steps + 1 = 11"),
    ((f"{HYBRID}.window=wide",), f"{HYBRID}.window", "from 1 to steps + 1"),
    ((f"{HYBRID}.partitions=0",), f"{HYBRID}.partitions", "at least 1"),
    ((f"{HYBRID}.order=cyclic",), f"{HYBRID}.order", "needs partitions > 1"),
    ((f"{HYBRID}.partitions=3", f"{HYBRID}.order=circle"), f"{HYBRID}.order", '"cyclic", with'),
    ((f"{HYBRID}.partitions=3", f"{HYBRID}.order=cycic"), f"{HYBRID}.order", "did you mean cyclic?"),
    (
        (f"{HYBRID}={{op='hybrid-max',max_steps=9,max_ok=1,stepsize=1,order='cyclic'}}",),
        f"{HYBRID}.order",
        "needs partitions > 1",
    ),
    (
        (f"{HYBRID}={{op='dynamic',steps=1,stepsize=1,partitions=3,order='cyclic'}}",),
        f"{HYBRID}.order",
        "unknown key",
    ),
    ((f"{HYBRID}.stepsize=0",), f"{HYBRID}.stepsize", "a positive number"),
    ((f"{HYBRID}.stepsize=nan",), f"{HYBRID}.stepsize", "a positive number"),
    ((f"{HYBRID}.stepsize_jitter=0",), f"{HYBRID}.stepsize_jitter", "positive (alpha of a Gamma)"),
    ((f"{HYBRID}={{op='metropolis'}}",), f"{HYBRID}.stepsize", "a positive number"),
    ((f"{HYBRID}={{op='dynamic',stepsize=1}}",), f"{HYBRID}.steps", "such as 64"),
    ((f"{HYBRID}={{op='sghmc',steps=1,stepsize=1,friction=-0.1}}",), f"{HYBRID}.friction", "at least 0"),
    ((f"{HYBRID}={{op='sghmc',steps=1,stepsize=1,batch=0}}",), f"{HYBRID}.batch", "at least 1"),
    ((f"{HYBRID}={{op='sghmc',steps=1,stepsize=1,noise='x'}}",), f"{HYBRID}.noise", '"estimate"'),
    ((f"{HYBRID}={{op='sghmc',steps=1,stepsize=1,noise='estimate'}}",), f"{HYBRID}.noise", "batch"),
    (
        (f"{HYBRID}={{op='sghmc',steps=1,stepsize=1,integrator='eular'}}",),
        f"{HYBRID}.integrator",
        "did you mean euler",
    ),
    (
        (f"{HYBRID}={{op='sghmc',steps=1,stepsize=1,batch=9,noise='estimate',integrator='langevin'}}",),
        f"{HYBRID}.noise",
        '"none"',
    ),
    (
        (f"{HYBRID}={{op='sghmc',steps=1,stepsize=1.0,friction=2.0,integrator='euler'}}",),
        f"{HYBRID}.friction",
        "below 2",
    ),
    ((f"{HYBRID}={{op='dynamic',steps=0,stepsize=1}}",), f"{HYBRID}.steps", "at least 1"),
    ((f"{HYBRID}={{op='dynamic',steps=1,stepsize=1,window=1}}",), f"{HYBRID}.window", "unknown key"),
    (
        (f"{HYBRID}={{op='dynamic',steps=1,stepsize=1,permuted=true}}",),
        f"{HYBRID}.permuted",
        "partitions > 1",
    ),
    ((f"{HYBRID}={{op='dynamic',steps=1,stepsize=1,permuted=1}}",), f"{HYBRID}.permuted", "true or false"),
    ((f"{HYBRID}={{op='metropolis-1',stepsize=1,random='yes'}}",), f"{HYBRID}.random", "true or false"),
    ((f"{HYBRID}={{op='metropolis',stepsize=1,acceptance='bark'}}",), f"{HYBRID}.acceptance", "mean barker?"),
    ((f"{HYBRID}.acceptance='barker'",), f"{HYBRID}.acceptance", "unknown key"),
    ((f"{HYBRID}={{op='slice-1',stepsize=1,max_steps=0}}",), f"{HYBRID}.max_steps", "at least 1"),
    ((f"{HYBRID}={{op='slice-1',stepsize=1,doubling=2}}",), f"{HYBRID}.doubling", "true or false"),
    ((f"{HYBRID}={{op='slice-1',stepsize=1,steps=3}}",), f"{HYBRID}.steps", "unknown key"),
    ((f"{HYBRID}={{op='rescale'}}",), f"{HYBRID}.along", '"sigmas" or "incoming"'),
    ((f"{HYBRID}={{op='hybrid-marginal',over=['output']}}",), f"{HYBRID}.over[0]", "did you mean outputs?"),
    ((f"{HYBRID}={{op='hybrid-marginal',over='outputs'}}",), f"{HYBRID}.over", 'a list of "outputs"'),
    ((f"{HYBRID}={{op='rescale',along='incomings'}}",), f"{HYBRID}.along", "did you mean incoming?"),
    ((f"{HYBRID}={{op='random-grid',step=1}}",), f"{HYBRID}.step", "did you mean stepsize?"),
    ((f"{HYBRID}={{op='random-grid',groups=['noise','ih1']}}",), f"{HYBRID}.groups", "did you mean ih0?"),
    ((f"{HYBRID}={{op='sample-sigmas',level='low'}}",), f"{HYBRID}.level", "did you mean lower?"),
    ((f"{HYBRID}={{op='sample-sigmas',groups=[]}}",), f"{HYBRID}.groups", "at least one group"),
    ((f"{HYBRID}={{op='sample-sigmas',groups=['bo','bo']}}",), f"{HYBRID}.groups", "each only once"),
    ((f"{HYBRID}={{op='sample-sigmas',groups='ih0'}}",), f"{HYBRID}.groups", "a list of groups"),
    ((f"{HYBRID}={{op='sample-sigmas',groups=[3]}}",), f"{HYBRID}.groups[0]", "the name of a group"),
    ((f"{HYBRID}={{op='sample-sigmas',groups=['ao']}}",), f"{HYBRID}.groups", "the groups here are ih0"),
    ((*BINARY, f"{HYBRID}={{op='sample-sigmas',groups=['noise']}}"), f"{HYBRID}.groups", "the groups here"),
    ((f"{HYBRID}={{op='sample-noise',level='lower'}}",), f"{HYBRID}.level", "unknown key"),
    ((f"{HYBRID}.jump=3",), f"{HYBRID}.jump", "must divide steps = 10"),
    ((f"{HYBRID}.jump=0",), f"{HYBRID}.jump", "must divide steps = 10"),
    ((f"{HYBRID}.jump=5", f"{HYBRID}.window=4"), f"{HYBRID}.window", "from 1 to steps / jump + 1 = 3"),
    ((f"{HYBRID}.integrator=euler",), f"{HYBRID}.integrator", '"two-stage" or "fourth-order"'),
    ((f"{HYBRID}.integrator=two-stages",), f"{HYBRID}.integrator", "did you mean two-stage?"),
    ((f"{HYBRID}.integrator=two-stage", f"{HYBRID}.partitions=2"), f"{HYBRID}.partitions", "full gradient"),
    (
        (f"{HYBRID}.integrator=fourth-order", f"{HYBRID}.partitions=2"),
        f"{HYBRID}.partitions",
        "takes the full gradient",
    ),
    ((f"{HYBRID}={{op='hybrid-max',max_ok=1,stepsize=1}}",), f"{HYBRID}.max_steps", "at least 1"),
    ((f"{HYBRID}={{op='hybrid-max',max_steps=9,stepsize=1}}",), f"{HYBRID}.max_ok", "at least 1"),
    ((f"{HYBRID}={{op='hybrid-max',max_steps=9,max_ok=0,stepsize=1}}",), f"{HYBRID}.max_ok", "at least 1"),
    (
        (f"{HYBRID}={{op='hybrid-max',max_steps=9,max_ok=1,stepsize=1,jump=2}}",),
        f"{HYBRID}.jump",
        "must divide max_steps = 9",
    ),
    ((f"{HYBRID}={{op='radial-heatbath',decay=0.5}}",), f"{HYBRID}.decay", "unknown key"),
    # overrides themselves
    (("seed",), "override", "key.path=value"),
    (("",), "override", "key.path=value"),
    (("seed.value=3",), "seed.value", "has no keys"),
    (("phase[5].iterations=3",), "phase.5", "below 2, counted from 0"),
    (("seed=3\nchains=4",), "seed", "one value"),
]


@pytest.mark.parametrize(("overrides", "key", "right"), WRONG, ids=[";".join(row[0]) for row in WRONG])
def test_a_wrong_configuration_names_the_key_and_what_would_be_right(
    overrides: tuple[str, ...], key: str, right: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        base(*overrides)
    message = str(caught.value)
    assert any(line.startswith(f"{key}:") and right in line for line in message.splitlines()), message
    assert caught.value.exit_code == 2


def test_there_are_at_least_120_wrong_configurations() -> None:
    assert len(set(WRONG)) == len(WRONG) >= 120


# Errors that an override cannot express, in the bytes of the file or in a Python caller's dictionary.

WRONG_FILES = [
    (b"seed = ", "is not valid TOML"),
    (b"seed = 1\nseed = 2\n", "is not valid TOML"),
    (b"[data]\n[data]\n", "is not valid TOML"),
    (b"seed: 1\n", "is not valid TOML"),
    (b"seed = " + b"9" * 5000, "is not valid TOML"),
    (b"seed = " + b"[" * 5000, "is not valid TOML"),
    (b"\xff\xfe", "is not UTF-8"),
    (b"", "data: missing"),
    (b"\xef\xbb\xbfseed = 1\n", "data: missing"),  # a byte order mark is no error
    (b'data = 2020-01-01\nmodel = {kind="real"}\n', "data: must be a table with train"),
]


@pytest.mark.parametrize(("content", "problem"), WRONG_FILES)
def test_a_wrong_file_is_named(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem):
        RunSpec.from_toml(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match=str(path)):
            RunSpec.from_toml(path)


def nested(depth: int) -> dict[str, Any]:
    operation: dict[str, Any] = {"op": "heatbath"}
    for _ in range(depth):
        operation = {"op": "repeat", "times": 1, "operations": [operation]}
    return {**BASE, "phase": [{"iterations": 1, "operations": [operation]}]}


WRONG_DICTIONARIES = [
    ({**BASE, 3: 4}, "configuration: keys must be text, got 3"),
    ({**BASE, "seed": 10**5000}, "seed: must be a whole number from 0"),
    ({**BASE, "seed": object()}, "seed: must be a whole number from 0"),
    ({**BASE, "seed": None}, "seed: must be a whole number from 0"),
    ({**BASE, "seed": b"1"}, "seed: must be a whole number from 0"),
    ({**BASE, "seed": 1 + 0j}, "seed: must be a whole number from 0"),
    ({**BASE, "data": {**BASE["data"], "train": "\ud800"}}, "data.train: must be the file of training cases"),
    ({**BASE, "data": {**BASE["data"], "train": Path("a.csv")}}, "data.train: must be the file"),
    ({**BASE, "data": {**BASE["data"], "inputs": {"x"}}}, "data.inputs: must be a list"),
    (nested(500), "nested more than 20 deep"),
]


@pytest.mark.parametrize(("raw", "problem"), WRONG_DICTIONARIES, ids=[row[1] for row in WRONG_DICTIONARIES])
def test_a_wrong_dictionary_is_named(raw: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RunSpec.from_dict(raw)
    assert problem in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"seed": 1', "[" * 100_000])
def test_wrong_json_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match="configuration"):
        RunSpec.from_json(text)


def test_every_wrong_key_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        base("seed=-1", "chains=0", "data.train=3")
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["seed", "chains", "data.train"]


@pytest.mark.parametrize(
    "override", ["phase[0].operations=['heatbath']", "data.inputs=[1]", f"{HYBRID}.steps=0", "phase=[3]"]
)
def test_a_wrong_element_is_reported_once(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        base(override)
    assert len(str(caught.value).splitlines()) == 1
