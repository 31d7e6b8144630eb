"""The scripts of cluster/slurm on a Slurm of one node: what stops a job does not change its draws.

Run by hand with: python -m pytest -m long tests/cluster/test_slurm.py
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rayfbnn import api
from rayfbnn.study import Rule, Study
from tests.support.cluster.nodes import free_port
from tests.support.drivers import iterations_done, slow_spec, wait_until
from tests.support.pages import ROOT
from tests.support.small import assert_same_draws

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
_SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"
_CONF = """
ClusterName=loop
SlurmctldHost=localhost(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={controller}
SlurmdPort={node}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
JobRequeue=1
KillWait=10
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_interval=5
MinJobAge=3600
NodeName=localhost NodeAddr=127.0.0.1 NodeHostname={host} CPUs={cpus} State=UNKNOWN
PartitionName=low Nodes=localhost Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=localhost MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""


def why_not() -> str:
    """The reason that Slurm cannot run here, "" if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_SYSTEM) is None]
    if missing:
        return (
            f"Slurm is not installed: no {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)"
        )
    return "" if os.geteuid() == 0 else "slurmd needs root"


class Slurm:
    """Commands to a Slurm whose configuration lies in `folder`."""

    def __init__(self, folder: Path) -> None:
        path = f"{Path(sys.executable).parent}:{_SYSTEM}"
        (folder / "home").mkdir()
        settings = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path, "HOME": str(folder / "home")}
        self.environment = {**os.environ, **settings}

    def __call__(self, *arguments: object, folder: Path | None = None) -> str:
        """Run a command, and return its output; an error has what it said."""
        command = [str(argument) for argument in arguments]
        done = subprocess.run(command, env=self.environment, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout.strip()

    def submit(self, *arguments: object, folder: Path) -> str:
        """Submit a job from a folder; return its number."""
        return self("sbatch", "--parsable", *arguments, folder=folder)

    def job(self, number: str) -> dict[str, str]:
        """Return the state of a job by Slurm's names, such as JobState and Restarts."""
        words = self("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, number: str, *states: str, seconds: float = 300) -> dict[str, str]:
        """Wait until a job is in one of the states."""
        deadline = time.monotonic() + seconds
        while (job := self.job(number))["JobState"] not in states:
            assert time.monotonic() < deadline, job
            time.sleep(0.5)
        return job


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Start munge and Slurm in a folder, and stop them at the end."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    ports = [free_port(), free_port()]
    conf = _CONF.format(
        folder=folder,
        controller=ports[0],
        node=ports[1],
        host=socket.gethostname().partition(".")[0],
        cpus=os.cpu_count(),
    )
    (folder / "slurm.conf").write_text(conf)
    cluster = Slurm(folder)
    with ExitStack() as stack:
        files = [
            f"--{what}={folder}/munge.{what}" for what in ("socket", "pid-file", "log-file", "seed-file")
        ]
        munge = ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key", *files]
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", "localhost"]):
            log = stack.enter_context((folder / f"{command[0]}.out").open("w"))
            process = subprocess.Popen(command, env=cluster.environment, stdout=log, stderr=log)
            stack.callback(_stop, process)
            time.sleep(1.0)
        deadline = time.monotonic() + 60
        while "idle" not in cluster("sinfo", "--noheader", "--format=%t"):
            assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.5)
        yield cluster


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


SCRIPTS = ROOT / "cluster" / "slurm"
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(why_not()), reason=why_not())]
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as running:
        running.environment["RAYFBNN_WORKERS"] = "0"
        yield running


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing disturbed, with its configuration in run.toml: some 30 seconds of one core."""
    folder = tmp_path_factory.mktemp("undisturbed")
    spec = slow_spec(folder, iterations=1500)
    (folder / "run.toml").write_text(spec.to_toml())
    api.sample(spec, folder / "run.zarr", workers=0, progress=False)
    return folder / "run.zarr"


def assert_ended_as_if_undisturbed(cluster: Slurm, job: str, store: Path, undisturbed: Path) -> None:
    ended = cluster.wait_for(job, *ENDED)
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), ended
    assert int(ended["Restarts"]) >= 1, "the job was never started again"
    assert_same_draws(store, undisturbed)


def test_a_job_at_its_time_limit_goes_on_in_another_turn(
    cluster: Slurm, undisturbed: Path, tmp_path: Path
) -> None:
    store = tmp_path / "run.zarr"
    limits = ("--time=00:02:00", "--signal=B:USR1@110", "--cpus-per-task=1")
    config = undisturbed.parent / "run.toml"
    job = cluster.submit(*limits, SCRIPTS / "one.sbatch", config, store, folder=tmp_path)
    assert_ended_as_if_undisturbed(cluster, job, store, undisturbed)
    assert "start it again" in (tmp_path / f"slurm-{job}.out").read_text()


def test_a_job_that_is_preempted_goes_on_when_there_is_room(
    cluster: Slurm, undisturbed: Path, tmp_path: Path
) -> None:
    """Slurm sends SIGTERM to the script and to rayfbnn."""
    store = tmp_path / "run.zarr"
    config = undisturbed.parent / "run.toml"
    job = cluster.submit("--cpus-per-task=1", SCRIPTS / "one.sbatch", config, store, folder=tmp_path)
    wait_until(lambda: iterations_done(store) > 100)
    urgent = cluster.submit("--partition=high", "--exclusive", "--wrap=sleep 3", folder=tmp_path)
    cluster.wait_for(urgent, "COMPLETED")
    assert 100 < iterations_done(store) < 3000, "the job was over before it could be preempted"
    assert_ended_as_if_undisturbed(cluster, job, store, undisturbed)


def test_a_job_that_must_not_be_started_again_is_not(cluster: Slurm, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("chains = 4\n")
    store = tmp_path / "run.zarr"
    job = cluster.submit("--cpus-per-task=1", SCRIPTS / "one.sbatch", "run.toml", store, folder=tmp_path)
    ended = cluster.wait_for(job, *ENDED)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "2:0", "0")
    assert not store.exists()


def test_a_job_that_is_cancelled_stays_so(cluster: Slurm, undisturbed: Path, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    config = undisturbed.parent / "run.toml"
    job = cluster.submit("--cpus-per-task=1", SCRIPTS / "one.sbatch", config, store, folder=tmp_path)
    wait_until(lambda: iterations_done(store) > 100)
    cluster("scancel", job)
    ended = cluster.wait_for(job, *ENDED)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")
    assert api.verify(store).ok


def test_the_tasks_of_an_array_share_a_study_and_decide_as_one_driver(cluster: Slurm, tmp_path: Path) -> None:
    spec, limits = slow_spec(tmp_path, iterations=60), Rule(max_rhat=1.0000001, looks=2, least_draws=5)
    study = Study.create(tmp_path / "study", spec, seeds=4, rule=limits)
    shutil.copytree(tmp_path / "study", tmp_path / "alone")
    Study.open(tmp_path / "alone").run(workers=0, progress=False)
    size = ("--array=0-1", "--cpus-per-task=1")
    job = cluster.submit(*size, SCRIPTS / "study.sbatch", tmp_path / "study", folder=tmp_path)
    for task in range(2):
        ended = cluster.wait_for(f"{job}_{task}", *ENDED)
        assert ended["ExitCode"] == "3:0", ended  # no study is so strict that it agrees to a millionth
    assert study.is_complete and len(study.looks()) == 2
    for name in ("000001.json", "000002.json"):
        ours, theirs = (tmp_path / one / "looks" / "c0000" / name for one in ("study", "alone"))
        assert ours.read_bytes() == theirs.read_bytes()


def test_a_ray_cluster_inside_an_allocation_runs_to_the_same_draws(
    cluster: Slurm, undisturbed: Path, tmp_path: Path
) -> None:
    store = tmp_path / "run.zarr"
    config = undisturbed.parent / "run.toml"
    size = ("--nodes=1", "--cpus-per-task=2")
    job = cluster.submit(*size, SCRIPTS / "many.sbatch", config, store, folder=tmp_path)
    ended = cluster.wait_for(job, *ENDED)
    assert ended["JobState"] == "COMPLETED", (tmp_path / f"slurm-{job}.out").read_text()[-3000:]
    assert_same_draws(store, undisturbed)
