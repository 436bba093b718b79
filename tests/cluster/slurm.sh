#!/usr/bin/env bash
# A real Slurm of two nodes, ftslurm1 and ftslurm2, on hosts of hosts.sh; a third, ftslurm3, is where slurmctld and munged run.
#
#   slurm.sh up DIR             then: export SLURM_CONF=DIR/slurm.conf; sinfo; sbatch ...
#   slurm.sh slurmd DIR NAME    starts a node's slurmd, on a host that came back
#   slurm.sh down DIR
#
# Needs root, slurm-wlm, munge and what hosts.sh needs. Without accounting and cgroups. Jobs of the past stay visible for an hour.
set -euo pipefail
hosts=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/hosts.sh
verb=${1:?up, slurmd or down}
dir=$(realpath -m "${2:?directory}")
export SLURM_CONF=$dir/slurm.conf PREFIX=ftslurm

write_conf() {
    local net
    net=$(cat "$dir/network")
    cat >"$SLURM_CONF" <<CONF
ClusterName=ft
SlurmctldHost=ftslurm3(10.77.$net.3)
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket,cred_expire=10
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=5
SlurmdTimeout=60
MinJobAge=3600
NodeName=ftslurm1 NodeAddr=10.77.$net.1 CPUs=8 RealMemory=8000 State=UNKNOWN
NodeName=ftslurm2 NodeAddr=10.77.$net.2 CPUs=8 RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
CONF
}

start_controller() {
    mkdir -p "$dir/state" "$dir/munge"
    chmod 755 "$dir/munge"
    dd if=/dev/urandom of="$dir/munge/key" bs=64 count=1 status=none
    chmod 400 "$dir/munge/key"
    # --force: folders above a test's folder are for its owner alone, and the owner is the only user here.
    "$hosts" run "$dir" ftslurm3 munged --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" \
        --pid-file="$dir/munge/pid" --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" 2>>"$dir/munge/log"
    "$hosts" run "$dir" ftslurm3 slurmctld
}

case $verb in
up)
    "$hosts" up "$dir" 3
    write_conf
    start_controller
    for name in ftslurm1 ftslurm2; do
        "$hosts" run "$dir" "$name" slurmd -N "$name"
    done
    for _ in $(seq 600); do
        [ "$(sinfo --noheader --states=idle --format=%D 2>/dev/null)" = 2 ] && exit 0
        sleep 0.2
    done
    sinfo >&2
    tail "$dir"/*.log "$dir/munge/log" >&2
    exit 1
    ;;
slurmd) "$hosts" run "$dir" "${3:?name}" slurmd -N "$3" ;;
down) "$hosts" down "$dir" ;;
*) echo "unknown verb $verb" >&2; exit 2 ;;
esac
