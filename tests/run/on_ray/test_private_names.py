"""Ray's private names that the package uses, which a new version of Ray may take away.

The tests run with the newest Ray that pip finds, so that a name which is gone is seen here first.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from rayfbnn.run.on_ray import cluster
from tests.support.pages import ROOT

ray = pytest.importorskip("ray")
NAMES = {
    "ray._private.worker.print_to_stdstream": "run/on_ray/cluster.py",
    "ray._private.state.state.get_draining_nodes": "run/on_ray/nodes.py",
    "ray._common.utils.try_make_directory_shared": "run/on_ray/machine.py",
    "ray.job_config.JobConfig._runtime_env_has_working_dir": "run/on_ray/cluster.py",
}
_PRIVATE = re.compile(r"\b(?:import ray\._\w+|ray\._\w+|_raylet)[\w.]*")


@pytest.mark.parametrize("name", NAMES)
def test_the_installed_ray_has_the_name(name: str) -> None:
    module, *rest = name.split(".")
    found = importlib.import_module(module)
    for part in rest:
        found = getattr(found, part)
    assert callable(found), f"Ray {ray.__version__}"


def test_no_other_private_name_is_used() -> None:
    used = {
        str(path.relative_to(ROOT / "rayfbnn")): set(_PRIVATE.findall(path.read_text()))
        for path in (ROOT / "rayfbnn").rglob("*.py")
    }
    modules = {"run/on_ray/cluster.py": {"import ray._private.worker"}}
    modules["run/on_ray/machine.py"] = {"ray._common"}
    calls = {"run/on_ray/nodes.py": {"ray._private.state.state.get_draining_nodes"}}
    assert {path: names for path, names in used.items() if names} == {**modules, **calls}


@pytest.fixture(params=["no module", "no function"])
def ray_without_the_printer(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    import ray._private.worker as ray_worker

    if request.param == "no module":
        monkeypatch.setitem(sys.modules, "ray._private.worker", None)
        monkeypatch.delattr(ray._private, "worker")
    else:
        empty = ModuleType("ray._private.worker")
        monkeypatch.setitem(sys.modules, "ray._private.worker", empty)
        monkeypatch.setattr(ray._private, "worker", empty)
    before = ray_worker.print_to_stdstream
    yield
    assert ray_worker.print_to_stdstream is before


@pytest.mark.usefixtures("ray_without_the_printer")
def test_without_the_name_ray_prints_and_the_result_is_alone_on_stdout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with cluster.result_alone_on_stdout():
        print("of Ray")
    print("result")
    assert capsys.readouterr() == ("result\n", "of Ray\n")
