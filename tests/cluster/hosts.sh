#!/usr/bin/env bash
# Test hosts on one machine, each with its own network, processes, host name and mounts, and its own sshd on ports 22 and 2222.
#
#   hosts.sh up DIR [N]         N hosts (default 2); DIR receives ssh_config, hostfile, keys and a folder a host
#   hosts.sh start DIR NAME     a host that was killed comes back
#   hosts.sh sshd DIR NAME [ulimit's options]     (re)starts a host's sshd, under these limits
#   hosts.sh run DIR NAME COMMAND...              runs a command there, past sshd
#   hosts.sh down DIR           nothing is left of them
#   hosts.sh clean              takes away what runs left behind whose owner is gone
#
#   PREFIX=node      names are PREFIX1, PREFIX2, ...
#   FABRIC=1         a second network: eth0 is the management network, where hosts don't see each other, eth1 the fabric
#   ALONE=1          each host knows only itself by name
#   OWNER=PID        `clean` (and the next `up`) takes the hosts away when this process is gone; 0: they stay until `down`
#
# Then `ssh -F DIR/ssh_config node1`. Outside DIR nothing is written; a bridge ftbrX, links fvX... and one process a host are what exists meanwhile.
# Needs root, iproute2, util-linux, procps, openssh-server and openssh-client. Hosts share the disk, but for /run and /dev/shm.
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
prefix=${PREFIX:-node}

init_of() { cat "$1/$2/init" 2>/dev/null; }
inside() { # DIR NAME COMMAND...
    nsenter --target "$(init_of "$1" "$2")" --net --pid --mount --uts -- "${@:3}"
}
number_of() { echo "${1##*[!0-9]}"; }
holders() { pgrep -f -- "hosts.sh hold $1 " || true; }

take_network() { # DIR: makes a bridge whose number no other run has, and writes the number down
    local net
    for net in $(seq 77 250); do
        ip link add "ftbr$net" type bridge 2>/dev/null || continue
        ip link set "ftbr$net" alias "ftlaunch ${OWNER:-0} $1"
        ip addr add "10.77.$net.254/24" dev "ftbr$net"
        ip addr add "fd77:$net::254/64" dev "ftbr$net" nodad 2>/dev/null || true
        ip link set "ftbr$net" up
        if [ -n "${FABRIC:-}" ]; then
            ip link add "ftbr${net}f" type bridge
            ip link set "ftbr${net}f" up
        fi
        echo "$net" >"$1/network"
        return
    done
    echo "no bridge can be made: $(ip link add ftbr0 type bridge 2>&1)" >&2
    exit 1
}

write_files() { # DIR N
    local dir=$1 net number name
    net=$(cat "$dir/network")
    [ -f "$dir/id" ] || ssh-keygen -q -t ed25519 -N '' -C test -f "$dir/id"
    [ -f "$dir/hostkey" ] || ssh-keygen -q -t ed25519 -N '' -C test -f "$dir/hostkey"
    printf '%s\n' 'Port 22' 'Port 2222' "HostKey $dir/hostkey" "AuthorizedKeysFile $dir/id.pub" 'StrictModes no' 'PermitRootLogin yes' \
        'PasswordAuthentication no' 'UsePAM yes' 'UseDNS no' 'PrintMotd no' 'MaxStartups 100' 'PidFile /run/sshd.pid' >"$dir/sshd_config"
    : >"$dir/ssh_config"
    : >"$dir/hostfile"
    for number in $(seq "$2"); do
        name=$prefix$number
        mkdir -p "$dir/$name"
        echo "$name slots=1" >>"$dir/hostfile"
        printf 'Host %s\n  HostName %s\n' "$name" "10.77.$net.$number" >>"$dir/ssh_config"
    done
    printf 'Host *\n  User root\n  IdentityFile %s\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n' \
        "$dir/id" >>"$dir/ssh_config"
    for number in $(seq "$2"); do
        write_names "$dir" "$number" "$2" "$net" >"$dir/$prefix$number/hosts"
    done
}

write_names() { # DIR NUMBER N NETWORK: a host's /etc/hosts
    local other
    echo '127.0.0.1 localhost'
    echo '::1 localhost ip6-localhost'
    echo "10.77.$4.254 launcher"
    for other in $(seq "$3"); do
        [ -n "${ALONE:-}" ] && [ "$other" != "$2" ] || echo "10.77.$4.$other $prefix$other"
    done
}

start_host() { # DIR NAME
    local dir=$1 name=$2 number net holder init=
    number=$(number_of "$name")
    net=$(cat "$dir/network")
    rm -f "$dir/$name/ready"
    # The holder lives as long as the host: when it is killed, so is process 1 of the host, and with that all of them.
    setsid unshare --net --pid --fork --kill-child --mount --mount-proc --uts bash "$self" hold "$dir" "$name" \
        </dev/null >"$dir/$name/log" 2>&1 &
    holder=$!
    for _ in $(seq 3000); do
        [ -e "$dir/$name/ready" ] && init=$(pgrep -P "$holder") && break
        sleep 0.02
    done
    [ -n "$init" ] || { cat "$dir/$name/log" >&2; exit 1; }
    echo "$init" >"$dir/$name/init"
    connect "$dir" "$name" "fv${net}n$number" "ftbr$net" eth0
    inside "$dir" "$name" ip link set lo up
    inside "$dir" "$name" ip addr add "10.77.$net.$number/24" dev eth0
    inside "$dir" "$name" ip addr add "fd77:$net::$number/64" dev eth0 nodad 2>/dev/null || true
    if [ -d "/sys/class/net/ftbr${net}f" ]; then
        bridge link set dev "fv${net}n$number" isolated on
        connect "$dir" "$name" "fv${net}f$number" "ftbr${net}f" eth1
        inside "$dir" "$name" ip addr add "10.78.$net.$number/24" dev eth1
    fi
    start_sshd "$dir" "$name"
}

connect() { # DIR NAME LINK BRIDGE INTERFACE
    ip link del "$3" 2>/dev/null || true
    ip link add "$3" type veth peer name "$5" netns "$(init_of "$1" "$2")"
    ip link set "$3" master "$4"
    ip link set "$3" up
    # The same after a restart: neighbours keep what they know of an address for up to a minute.
    inside "$1" "$2" ip link set "$5" address "$(printf '02:00:00:%02x:%02x:%02x' "$(cat "$1/network")" "${#5}${5: -1}" "$(number_of "$2")")"
    inside "$1" "$2" ip link set "$5" up
}

start_sshd() { # DIR NAME [ulimit's options]
    # shellcheck disable=SC2016
    inside "$1" "$2" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -c '
        [ ! -f /run/sshd.pid ] || kill "$(cat /run/sshd.pid)" 2>/dev/null || true
        while [ -f /run/sshd.pid ]; do sleep 0.02; done
        [ $# = 1 ] || ulimit "${@:2}"
        /usr/sbin/sshd -f "$1/sshd_config" -E /run/sshd.log
        # It says by its name that it listens, a moment later: until then it looks like something that runs on the host.
        until grep -aqsF "[listener]" "/proc/$(cat /run/sshd.pid 2>/dev/null || echo none)/cmdline"; do sleep 0.02; done' sshd "$1" "${@:3}"
}

hold() { # DIR NAME: what becomes process 1 of a host
    local file
    hostname "$2"
    mount -t tmpfs tmpfs /run
    mkdir /run/sshd
    mount -t tmpfs tmpfs /dev/shm
    mount --bind "$1/$2/hosts" /etc/hosts
    # What this machine's user has there belongs to its terminals: it may take locks, and a host is killed at any moment.
    for file in ~/.bashrc ~/.bash_profile ~/.bash_login ~/.profile; do
        [ ! -f "$file" ] || mount --bind /dev/null "$file"
    done
    touch "$1/$2/ready"
    # Whoever ignores SIGCHLD leaves no zombies of the processes that fall to it.
    exec env --ignore-signal=CHLD sleep infinity
}

down() { # DIR NETWORK
    local pid link
    for pid in $(holders "$1"); do
        kill -KILL "$pid" 2>/dev/null || true
    done
    while [ -n "$(holders "$1")" ]; do sleep 0.02; done
    for link in /sys/class/net/fv"$2"[nf]*; do
        [ ! -e "$link" ] || ip link del "${link##*/}" 2>/dev/null || true
    done
    ip link del "ftbr${2}f" 2>/dev/null || true
    ip link del "ftbr$2" 2>/dev/null || true
}

clean() {
    local link words net
    for link in /sys/class/net/ftbr*; do
        [ -e "$link/ifalias" ] && read -r -a words <"$link/ifalias" || continue
        [ "${words[0]:-}" = ftlaunch ] && [ "${words[1]}" != 0 ] && [ ! -d "/proc/${words[1]}" ] || continue
        net=${link##*/ftbr}
        down "${words[2]}" "$net"
    done
}

verb=${1:?up, start, sshd, run, down or clean}
[ "$verb" = clean ] || dir=$(realpath -m "${2:?directory}")
case $verb in
up)
    clean
    mkdir -p "$dir"
    take_network "$dir"
    write_files "$dir" "${3:-2}"
    for number in $(seq "${3:-2}"); do
        start_host "$dir" "$prefix$number"
    done
    ;;
start) start_host "$dir" "$3" ;;
sshd) start_sshd "$dir" "$3" "${@:4}" ;;
run) inside "$dir" "$3" "${@:4}" ;;
hold) hold "$dir" "$3" ;;
down) [ ! -f "$dir/network" ] || down "$dir" "$(cat "$dir/network")" ;;
clean) clean ;;
*) echo "unknown verb $verb" >&2; exit 2 ;;
esac
