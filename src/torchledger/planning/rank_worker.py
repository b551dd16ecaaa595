"""One rank of a plan in a process of its own: ``python -m torchledger.planning.rank_worker REQUEST.json``.

What the script prints goes to stderr. A sentence that says why there is no ledger is left in the request's ``failure``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torchledger.errors import TorchledgerError
from torchledger.nouns import Device, WorldSpec
from torchledger.planning.dry_run import run_without_device, script_program
from torchledger.signals import end_with_parent
from torchledger.store.codec import decode


def main(request: Path) -> int:
    """Record the rank that the request asks for."""
    asked = json.loads(request.read_bytes())
    end_with_parent(asked["parent"])
    try:
        run_without_device(
            script_program(asked["script"], asked["arguments"], is_module=asked["is_module"]),
            Path(asked["path"]),
            decode(Device, json.dumps(asked["device"]).encode()),
            force=True,
            argv=(asked["script"], *asked["arguments"]),
            world=WorldSpec(**asked["world"]),
        )
    except TorchledgerError as error:
        Path(asked["failure"]).write_text(str(error))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
