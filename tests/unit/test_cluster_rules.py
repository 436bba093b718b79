"""The cluster section: rules between its keys, options that stand for them, and what a resume may change in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.errors import Problem, SpecError
from launcher.hostfile import read_hostfile
from launcher.resolve import Options, check_spec, read_and_resolve
from launcher.resuming import changes, resolve_again
from launcher.ssh_options import wrong_ssh_options

BASE = "model: {model_name_or_path: 'builtin:tiny-llama'}\ndata: {train: {path: 'builtin:extraction/train'}}\n"


def problems_of(tmp_path: Path, cluster: str) -> list[Problem]:
    (tmp_path / "spec.yaml").write_text(f"{BASE}cluster: {{{cluster}}}\n")
    return check_spec(Options(spec_path=tmp_path / "spec.yaml"))


@pytest.mark.parametrize(
    "cluster",
    [
        "",
        "master_addr: 198.51.100.5, master_port: 29600, interface: eth1, launcher: pdsh",
        "master_addr: 'fd00::7'",
        "environment: {NCCL_DEBUG: INFO, OMP_NUM_THREADS: '4'}, forward_env: [MY_*, OTHER]",
        "forward_env: MY_FLAG, ssh_options: -C",
        "ssh_options: [-i, key, -oProxyJump=gate, -J, gate, -4C, -lme]",
        "max_restarts: 2, elastic: true",
        "preempt_grace: 120",
        "scheduler: {time: 24:00:00, partition: 'a,b', account: lab_1, qos: high, constraint: '[rack1*2&rack2]', sbatch_args: --exclusive}",
        "scheduler: {time: 2h30m, sbatch_args: [--gres=gpu:a100:4, --mem=0, --wait-all-nodes=1, '--comment=a_b', --exclude=n1]}",
        "scheduler: {signal: USR1, signal_lead: 300, nodes: 2, slots_per_node: 4, max_requeues: 0, requeue_backoff: 0}",
    ],
)
def test_right_sections(tmp_path: Path, cluster: str) -> None:
    assert problems_of(tmp_path, cluster) == []


@pytest.mark.parametrize(
    ("cluster", "where", "told", "fix"),
    [
        ("launcher: srun", "launcher", "one of ssh, pdsh, deepspeed expected", "inside a Slurm job srun is taken by itself"),
        ("launcher: rsh", "launcher", "one of ssh, pdsh, deepspeed expected", "ssh"),
        ("master_addr: -oProxyCommand=x", "master_addr", "is no host name", "an IP address"),
        ("master_addr: 'a;b'", "master_addr", "is no host name", "an IP address"),
        ("master_addr: 'node1:29500'", "master_addr", "holds a port", "cluster.master_port"),
        ("master_port: 80", "master_port", "80 is out of range", "at least 1024"),
        ("interface: 'eth0 eth1'", "interface", "is no network interface", "ip link"),
        ("environment: {HF_TOKEN: x}", "environment.HF_TOKEN", "HF_TOKEN looks like a secret", "--env-file"),
        ("environment: {A_URL: 'http://me:word@host'}", "environment.A_URL", "looks like a secret", "--env-file"),
        ("environment: {RANK: '1'}", "environment.RANK", "RANK is set by ftlaunch for each rank", "remove"),
        ("environment: {MASTER_ADDR: x}", "environment.MASTER_ADDR", "for each launch", "cluster.master_addr"),
        ("environment: {CUDA_VISIBLE_DEVICES: '0'}", "environment.CUDA_VISIBLE_DEVICES", "one host's own devices", "--include"),
        ("environment: {A-B: x}", "environment.A-B", "is no name of a variable", "letters"),
        ("environment: {A: 4}", "environment.A", "text expected, got number 4", "quotes"),
        ("forward_env: ['A=1']", "forward_env", "'A=1' is no name", "NAME_*"),
        ("forward_env: ['*']", "forward_env", "'*' is no name", "NAME_*"),
        ("forward_env: [LOCAL_RANK]", "forward_env", "LOCAL_RANK is set by ftlaunch", "remove"),
        ("ssh_options: [node3]", "ssh_options", "would take 'node3' for the host", "options only"),
        ("ssh_options: [-t]", "ssh_options", "-t makes a terminal", "remove"),
        ("elastic: true", "elastic", "max_restarts is 0", "--max-restarts"),
        ("heartbeat_timeout: 1", "heartbeat_timeout", "1 is out of range", "at least 2"),
        ("stall_timeout: -1", "stall_timeout", "-1 is out of range", "at least 0"),
        ("preempt_grace: 60", "preempt_grace", "120 s for the last save", "preempt_grace 120 or more"),  # H03
        ("scheduler: {signal_lead: 900, time: 2h}", "scheduler.signal_lead", "900 s for the last save", "signal_lead 600 or less"),  # H03
        ("scheduler: {signal: KILL}", "scheduler.signal", "one of USR2, USR1, TERM expected", "USR2"),  # H04
        ("scheduler: {time: 3600.0}", "scheduler.time", "text expected, got number", "quotes"),  # H12
        ("scheduler: {time: '3600.0'}", "scheduler.time", "is no time limit", "write `3600s`"),  # H12
        ("scheduler: {time: '0:240:0'}", "scheduler.time", "240 minutes", "HOURS:MINUTES:SECONDS"),  # H12
        ("scheduler: {partition: 'a b'}", "scheduler.partition", "'a b'", "letters"),
        ("scheduler: {account: --x}", "scheduler.account", "'--x'", "letters"),
        ("scheduler: {constraint: 'a$(x)'}", "scheduler.constraint", "'a$(x)'", "features"),
        ("scheduler: {sbatch_args: [--nodes=2]}", "scheduler.sbatch_args", "--nodes", "slots_per_node"),
        ("scheduler: {sbatch_args: [--node=2]}", "scheduler.sbatch_args", "--node", "slots_per_node"),
        ("scheduler: {sbatch_args: [--open-mode=truncate]}", "scheduler.sbatch_args", "--open-mode", "remove it"),
        ("scheduler: {sbatch_args: [--no-requeue]}", "scheduler.sbatch_args", "--no-requeue", "max_requeues: 0"),
        ("scheduler: {sbatch_args: [--gpus=8]}", "scheduler.sbatch_args", "--gpus is ftlaunch's own", "slots_per_node"),
        ("scheduler: {sbatch_args: [--tasks-per-node=8]}", "scheduler.sbatch_args", "--tasks-per-node is ftlaunch's own", "slots_per_node"),
        ("scheduler: {sbatch_args: [--depend=1]}", "scheduler.sbatch_args", "--depend is ftlaunch's own", "submit --chain"),
        ("scheduler: {sbatch_args: [--uid=0]}", "scheduler.sbatch_args", "--uid is ftlaunch's own", "the user who submits"),
        ("scheduler: {time: 3600}", "scheduler.time", "text expected, got number", "`3600s` if these are seconds"),  # H12
        ("scheduler: {sbatch_args: [--mem=1, --mem=2]}", "scheduler.sbatch_args", "--mem is given twice", "one of them"),
        ("scheduler: {sbatch_args: [-N2]}", "scheduler.sbatch_args", "'-N2'", "--name=value"),
        ("scheduler: {sbatch_args: ['--mem 1']}", "scheduler.sbatch_args", "'--mem 1'", "--name=value"),
        ('scheduler: {sbatch_args: ["--comment=x\\n#SBATCH --uid=0"]}', "scheduler.sbatch_args", "--comment", "--name=value"),
        ("scheduler: {walltime: 2h}", "scheduler.walltime", "unknown key", "`cluster.scheduler.time`"),
        ("ssh_port: 22", "ssh_port", "unknown key", "behind the host's slots"),
    ],
)
def test_wrong_sections(tmp_path: Path, cluster: str, where: str, told: str, fix: str) -> None:
    (problem,) = problems_of(tmp_path, cluster)
    assert problem.where == f"cluster.{where}" and told in problem.what and fix in problem.fix
    assert (problem.file, problem.line) == (str(tmp_path / "spec.yaml"), 3)


def test_a_limit_shorter_than_the_warning(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "scheduler: {time: 2m}")
    assert problem.where == "cluster.scheduler.time" and "signal_lead" in problem.what


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["-oRequestTTY=force"], "-o RequestTTY=force would change"),
        (["-o", "BatchMode no"], "-o BatchMode no would change"),
        (["-4n"], "-n closes stdin"),
        (["-p"], "-p needs a value"),
        (["--"], "would take '--'"),
        (["-"], "would take '-'"),
        (["-i", "-n", "x"], "would take 'x'"),
        (["-o", " "], None),
    ],
)
def test_ssh_options_that_would_break_the_line_to_a_host(options: list[str], told: str | None) -> None:
    found = list(wrong_ssh_options(options))
    assert [told in reason and bool(fix) for reason, fix in found] == [True] if told else found == []


OPTIONS: dict[str, Any] = {"launcher": "pdsh", "master_addr": "192.0.2.5", "master_port": 29600, "interface": "eth1", "max_restarts": 2, "elastic": True}


def test_options_stand_for_keys(tmp_path: Path) -> None:  # A09: an explicit address and interface stay as given
    (tmp_path / "spec.yaml").write_text(f"{BASE}cluster: {{master_addr: other, slots: 2}}\n")
    resolved = read_and_resolve(Options(spec_path=tmp_path / "spec.yaml", **OPTIONS)).resolved
    for name, value in OPTIONS.items():
        assert getattr(resolved.spec.cluster, name) == value
        assert resolved.sources[f"cluster.{name}"] == f"--{name.replace('_', '-')}"
    assert resolved.sources["cluster.heartbeat_timeout"] == "default" and "cluster.scheduler.nodes" not in resolved.sources
    with pytest.raises(SpecError, match="set by --interface and --set"):
        read_and_resolve(Options(spec_path=tmp_path / "spec.yaml", interface="a", sets=("cluster.interface=b",)))
    with pytest.raises(SpecError, match=r"--elastic: .*max_restarts is 0"):
        read_and_resolve(Options(spec_path=tmp_path / "spec.yaml", elastic=True))


def test_all_of_the_section_may_change_on_a_resume(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(f"{BASE}cluster: {{slots: 2, interface: eth0, environment: {{A: '1'}}, scheduler: {{time: 2h, partition: p}}}}\n")
    before = read_and_resolve(Options(spec_path=tmp_path / "spec.yaml")).resolved
    sets = ("cluster.interface=null", "cluster.environment.B=x", "cluster.scheduler.time=3h", "cluster.stall_timeout=60", "cluster.ssh_options=[-C]")
    after = resolve_again(before, Options(sets=sets, max_restarts=1, elastic=True, launcher="pdsh"), 2)
    cluster = after.spec.cluster
    assert (cluster.interface, cluster.environment, cluster.stall_timeout, cluster.ssh_options) == ("", {"A": "1", "B": "x"}, 60.0, ("-C",))
    assert (cluster.scheduler.time, cluster.scheduler.partition, cluster.max_restarts, cluster.elastic, cluster.launcher) == ("3h", "p", 1, True, "pdsh")
    assert after.sources["cluster.max_restarts"] == "--max-restarts (resume, attempt 2)" and after.sources["cluster.interface"] == "default"
    assert after.sources["cluster.environment.A"] == before.sources["cluster.environment.A"] and after.hosts == before.hosts
    with pytest.raises(SpecError, match=r"give cluster\.max_restarts"):
        resolve_again(before, Options(elastic=True), 2)


@pytest.mark.parametrize("line", ["trainer@localhost slots=2", "localhost slots=2 port=2222", "localhost slots=2 interface=lo", "localhost slots=2 env.A=1"])
def test_a_host_that_is_reached_in_another_way_is_a_change(tmp_path: Path, line: str) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=2\n")
    (tmp_path / "spec.yaml").write_text(BASE)
    before = read_and_resolve(Options(spec_path=tmp_path / "spec.yaml", hosts=hosts)).resolved
    hosts.write_text(f"{line}\n")
    after = resolve_again(before, Options(hosts=hosts), 2)
    assert after.hosts == read_hostfile(hosts) != before.hosts and set(changes(before, after)) == {"hosts"}
    assert resolve_again(after, Options(hosts=hosts), 3) is after
