#!/usr/bin/env bash
# Ranks of node 0 of 2 (alpha). Written by ftlaunch; it can also be started by hand.
set -euo pipefail
cd '/home/me/it'"'"'s'
export MASTER_ADDR="${MASTER_ADDR:-alpha}"
export MASTER_PORT="${MASTER_PORT:-29500}"
export PYTHONPATH=/src"${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONSAFEPATH=1
exec /venv/bin/python -m launcher.node \
    --run-dir '/runs/a b' --host alpha --node-rank 0 --nodes 2 --local-ranks 2 --first-rank 0 --world-size 4 --import-once "$@" \
    -- /venv/bin/python -m ftcore.run '/runs/a b'
