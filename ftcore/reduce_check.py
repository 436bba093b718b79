"""One rank of the trial all-reduce: `python -m ftcore.reduce_check ADDR PORT RANK WORLD_SIZE INTERFACE LOCAL_RANK`.

Reads one JSON line from stdin, {"id", "environment"}, meets the other ranks at ADDR:PORT, sums 1 MiB with them some times, and writes one line:
a mark and {"id", "seconds", "bytes", "backend", "device"} or {"id", "error"}. It ends when stdin does, whatever it waits for.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn

MARK = "ftlaunch-probe "
"""As the launcher's probes begin their answers."""
COUNT = 2**18
"""Numbers of fp32: 1 MiB."""
ROUNDS = 5
"""The quickest counts: the first sets up connections."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Answers, and stays until stdin ends: a rank that leaves early would break the others' last round."""
    order = json.loads(sys.stdin.buffer.readline())
    os.environ.update({**order["environment"], **rank_environment(arguments)})
    threading.Thread(target=_answer, args=(order["id"],), daemon=True).start()
    while sys.stdin.buffer.read(1 << 16):
        pass
    os._exit(0)


def rank_environment(arguments: Sequence[str]) -> dict[str, str]:
    """The variables of a rank, from the command line."""
    address, port, rank, world_size, interface, local_rank = arguments
    chosen = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"} if interface else {}
    # What the user told gloo or NCCL stands.
    told = {name: value for name, value in chosen.items() if name not in os.environ}
    return {"MASTER_ADDR": address, "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": local_rank, **told}


def reduce_times() -> dict[str, Any]:
    """Meets the others and sums. Raises RuntimeError when a sum is wrong, or whatever torch raises."""
    import torch

    from ftcore import dist

    ranks = dist.start()
    expected = ranks.world_size * (ranks.world_size + 1) / 2
    seconds = []
    for _ in range(ROUNDS):
        numbers = torch.full((COUNT,), float(ranks.rank + 1), device=ranks.device)
        dist.barrier()
        begun = time.monotonic()
        dist.sum_in_place(numbers)
        # Reading one number waits for the device.
        if not bool((numbers == expected).all()):
            raise RuntimeError(f"the sum over {ranks.world_size} ranks is {float(numbers[0])}, not {expected}")
        seconds.append(time.monotonic() - begun)
    backend = "nccl" if ranks.device.type == "cuda" else "gloo"
    return {"seconds": min(seconds), "bytes": COUNT * 4, "backend": backend, "device": str(ranks.device)}


def _answer(number: int) -> None:
    try:
        answer = reduce_times()
    except Exception as error:  # noqa: BLE001  the launcher must hear of it, whatever it was
        answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{MARK}{json.dumps({'id': number, **answer})}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
