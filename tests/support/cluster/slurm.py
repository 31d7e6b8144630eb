"""A Slurm of one node on the loopback interface, in a folder of its own, for as long as a test needs it."""

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

from tests.support.cluster.session import free_port

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
