#!/usr/bin/env bash
# Ranks of node 1 of 2 (beta). Written by ftlaunch; it can also be started by hand.
set -euo pipefail
cd '/home/me/it'"'"'s'
export MASTER_ADDR="${MASTER_ADDR:-alpha}"
export MASTER_PORT="${MASTER_PORT:-29500}"
export PYTHONPATH=/src"${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONSAFEPATH=1
exec /venv/bin/python -m launcher.node \
    --run-dir '/runs/a b' --host beta --node-rank 1 --nodes 2 --local-ranks 2 --first-rank 2 --world-size 4 --devices 0,2 --import-once "$@" \
    -- /venv/bin/python -m ftcore.run '/runs/a b'
